// Activations as the columns that products multiply: split into bf16 parts, or rounded to f16, scaled by a power of
// two.
#pragma once

#include "kernels/cuda/device_types.cuh"

namespace plumb::cuda {

// Where in a column an element lies.
enum class Order {
  AsTheyLie,
  Pairs2,  // of four, 0 2 1 3: bytes as decode_e4m3 takes them
  Pairs4,  // of eight, 0 4 1 5 2 6 3 7: nibbles as decode_e2m1 takes them
  // Along the k of wgmma's steps of 16, for weights of which lanes hold 16 bytes of FP8 or NVFP4 side by side.
  Steps16,
  Steps32,
};
__device__ inline int64_t place_of(Order order, int64_t i) {
  const int e = static_cast<int>(i & 7);
  if (order == Order::AsTheyLie) return i;
  if (order == Order::Pairs2) return (i & ~int64_t{3}) + (e & 1) * 2 + (e >> 1 & 1);
  if (order == Order::Pairs4) return i - e + e % 4 * 2 + e / 4;
  const int lane = order == Order::Steps16 ? 16 : 32;  // elements of one
  const int in = static_cast<int>(i % (4 * lane)), q = in / lane, part = in % lane / 8;
  const bool nibbles = order == Order::Steps32;
  const int step = nibbles ? e % 4 / 2 : e / 4, upper = nibbles ? e % 2 : e / 2 % 2, odd = nibbles ? e / 4 : e % 2;
  return i - in + (part * 2 + step) * 16 + upper * 8 + q * 2 + odd;
}

// [rows, parts, k] of 16 bits and the exponent of each row.
struct Columns {
  uint16_t* data = nullptr;
  int32_t* exponent = nullptr;
  int parts = 1;  // 3: hi, mid, lo of f32; 1: rounded
  bool half =
      false;  // f16 up to 2^15 instead of bf16 up to 2: 11 bits, of what is larger than 2^-29 of the row's largest
  int64_t k = 0;
  Order order = Order::AsTheyLie;
};

inline int64_t columns_bytes(int64_t rows, int64_t k) { return aligned(rows * 4) + aligned(rows * 3 * k * 2); }
inline Columns columns_at(std::byte* memory, int64_t rows, int64_t k) {
  return {.data = reinterpret_cast<uint16_t*>(memory + aligned(rows * 4)),
          .exponent = reinterpret_cast<int32_t*>(memory),
          .k = k};
}

inline constexpr int kHalfExponent = 14;  // of a row's largest element
__device__ inline uint16_t half_of(float x) {
  uint16_t out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(x));
  return out;
}
__device__ inline bool finite(float x) { return fabsf(x) < INFINITY; }

// One block a row. `value(i)` is element i; it is asked twice.
// The kernel that multiplies may start at once: it waits for all of this one before it reads.
template <class Value>
__device__ void split_row(const Columns& out, int64_t row, Value value) {
  cudaTriggerProgrammaticLaunchCompletion();
  __shared__ float largest_of[32];
  float largest = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < out.k; i += blockDim.x) {
    const float x = fabsf(value(i));
    if (finite(x)) largest = fmaxf(largest, x);
  }
  for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
  if (threadIdx.x % 32 == 0) largest_of[threadIdx.x / 32] = largest;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / 32; ++w) largest = fmaxf(largest, largest_of[w]);
  const int exponent = (largest > 0 ? ilogbf(largest) : 0) - (out.half ? kHalfExponent : 0);
  if (threadIdx.x == 0) out.exponent[row] = exponent;
  uint16_t* to = out.data + row * out.parts * out.k;
  // In two factors, because 2^-exponent alone may be no normal number.
  const float half = ldexpf(1.0f, -exponent / 2), other = ldexpf(1.0f, -exponent + exponent / 2);
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < out.k; i += blockDim.x) {
    const float x = value(i) * half * other;
    const int64_t at = place_of(out.order, i);
    if (out.half) {
      to[at] = half_of(x);
      continue;
    }
    const uint16_t hi = f32_to_bf16(x);
    to[at] = hi;
    if (out.parts == 1) continue;
    const float rest = finite(x) ? x - bf16_to_f32(hi) : 0.0f;
    const uint16_t mid = f32_to_bf16(rest);
    to[out.k + at] = mid;
    to[2 * out.k + at] = f32_to_bf16(rest - bf16_to_f32(mid));
  }
}

}  // namespace plumb::cuda
