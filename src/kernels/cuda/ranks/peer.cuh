// How kernels of different ranks speak: flags that are raised after what they speak of, and waits that end in time.
#pragma once

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/ranks/peer_memory.h"

namespace plumb::cuda {

inline constexpr int kPeerThreads = 256;

__device__ inline void raise(uint32_t* flag, uint32_t turn) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(turn) : "memory");
}
// Has it been raised for launch `turn`, or a later one?
__device__ inline bool raised(const uint32_t* flag, uint32_t turn) {
  uint32_t seen;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
  return static_cast<int32_t>(seen - turn) >= 0;
}
__device__ inline uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// False: the deadline has passed, or the host knows that rank `from` is gone.
__device__ inline bool await(const uint32_t* flag, uint32_t turn, PeerControl* control, int from) {
  constexpr int kSpins = 2048;  // well beyond what a rank in step takes
  for (int i = 0; i < kSpins; ++i)
    if (raised(flag, turn)) return true;
  const uint64_t begin = nanoseconds();
  while (true) {
    for (int i = 0; i < 64; ++i)
      if (raised(flag, turn)) return true;
    const uint64_t deadline = *static_cast<volatile uint64_t*>(&control->deadline_ns);
    const bool over = deadline != 0 && nanoseconds() - begin > deadline;
    if (!over && *static_cast<volatile uint32_t*>(&control->give_up) == 0) continue;
    *static_cast<volatile uint32_t*>(&control->late[from]) = 1;
    __threadfence_system();
    return false;
  }
}

// What all threads of a block need to know of their launch.
struct Turn {
  uint32_t number;
  int slot;
  bool broken;
};
__device__ inline Turn begin_turn(const PeerView& v, const Turns& turns) {
  __shared__ uint32_t number, broken;
  if (threadIdx.x == 0) {
    number = *static_cast<const volatile uint32_t*>(&turns.launches) + 1;
    broken = *static_cast<volatile uint32_t*>(&v.own().broken);
  }
  __syncthreads();
  return {number, static_cast<int>(number & 1), broken != 0};
}
// True in the thread that ends the launch: all blocks are done.
__device__ inline bool end_turn(Turns& turns, const Turn& turn) {
  __syncthreads();
  if (threadIdx.x > 0) return false;
  __threadfence();
  if (atomicAdd(&turns.blocks, 1) + 1 != gridDim.x) return false;
  turns.blocks = 0;
  turns.launches = turn.number;
  __threadfence();
  return true;
}

// The block's writes are seen by rank p before flag_of(p) is; for each other rank.
template <class FlagOf>
__device__ void tell_others(const PeerView& v, const Turn& turn, FlagOf flag_of) {
  __syncthreads();
  const int p = static_cast<int>(threadIdx.x);
  if (p < v.ranks && p != v.rank) raise(flag_of(p), turn.number);
}
// True once flag_of(p) has been raised by each other rank p; what they wrote before can be read.
template <class FlagOf>
__device__ bool await_others(const PeerView& v, const Turn& turn, FlagOf flag_of) {
  const int p = static_cast<int>(threadIdx.x);
  const bool here = p >= v.ranks || p == v.rank || await(flag_of(p), turn.number, v.control, p);
  if (__syncthreads_and(here) != 0) return true;
  if (p == 0) v.own().broken = 1;
  return false;
}

// Rows without or with gaps, as vectors of V floats in the order of their elements.
template <int V>
struct Vec;
template <>
struct Vec<1> {
  using Type = float;
};
template <>
struct Vec<4> {
  using Type = float4;
};
struct Rows {
  float* data = nullptr;
  int64_t ld = 0, n = 0;
  template <int V>
  __device__ typename Vec<V>::Type* at(int64_t i) const {
    const int64_t element = i * V;
    return reinterpret_cast<typename Vec<V>::Type*>(data + (ld == n ? element : element / n * ld + element % n));
  }
};
inline Rows rows_of(const Tensor& x) {
  PLUMB_CHECK(x.dtype == DType::F32, "ranks exchange f32");
  return {static_cast<float*>(x.data), x.ld, x.dim(1)};
}
inline bool in_vectors(const Rows& x) {
  return x.n % 4 == 0 && x.ld % 4 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

__device__ inline void add(float& sum, float x) { sum += x; }
__device__ inline void add(float4& sum, const float4& x) {
  sum.x += x.x;
  sum.y += x.y;
  sum.z += x.z;
  sum.w += x.w;
}
__device__ inline float rounded(float x) { return round_bf16(x); }
__device__ inline float4 rounded(const float4& x) {
  return {round_bf16(x.x), round_bf16(x.y), round_bf16(x.z), round_bf16(x.w)};
}

}  // namespace plumb::cuda
