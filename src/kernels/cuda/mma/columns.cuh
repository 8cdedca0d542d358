// Activations as the columns that tile.cuh multiplies: split into bf16 parts, scaled by a power of two.
#pragma once

#include "kernels/cuda/device_types.cuh"

namespace plumb::cuda {

// [rows, parts, k] bf16 and the exponent of each row.
struct Columns {
  uint16_t* data = nullptr;
  int32_t* exponent = nullptr;
  int parts = 1;  // 3: hi, mid, lo of f32; 1: bf16
  int64_t k = 0;
  int pairing = 1;  // how far apart are the elements that decoding puts side by side: 1 as they lie, E4M3 2, E2M1 4
};

inline int64_t columns_bytes(int64_t rows, int64_t k) { return aligned(rows * 4) + aligned(rows * 3 * k * 2); }
inline Columns columns_at(std::byte* memory, int64_t rows, int64_t k) {
  return {.data = reinterpret_cast<uint16_t*>(memory + aligned(rows * 4)),
          .exponent = reinterpret_cast<int32_t*>(memory),
          .k = k};
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
  const int exponent = largest > 0 ? ilogbf(largest) : 0;
  if (threadIdx.x == 0) out.exponent[row] = exponent;
  uint16_t* to = out.data + row * out.parts * out.k;
  // In two factors, because 2^-exponent alone may be no normal number.
  const float half = ldexpf(1.0f, -exponent / 2), other = ldexpf(1.0f, -exponent + exponent / 2);
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < out.k; i += blockDim.x) {
    const float x = value(i) * half * other;
    const int64_t in_eight = i & 7;
    // 4: 0 4 1 5 2 6 3 7; 2: 0 2 1 3 4 6 5 7
    const int64_t at = out.pairing == 4   ? i - in_eight + in_eight % 4 * 2 + in_eight / 4
                       : out.pairing == 2 ? (i & ~int64_t{3}) + (i & 1) * 2 + (i >> 1 & 1)
                                          : i;
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
