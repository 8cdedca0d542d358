// A few rows times a few rows of a plain weight, in f32, by a block whose warps share k. Every load of a round is under
// way before the first is used, so that short products take little more than one trip to memory.
#pragma once

#include "kernels/cuda/device_types.cuh"

namespace plumb::cuda {

inline constexpr int kSplitThreads = 256;
inline constexpr int kSplitWarps = kSplitThreads / 32;
inline constexpr int kEight = 8;  // neighbours in k that a lane takes

__device__ inline float widened(float x) { return x; }
__device__ inline float widened(uint16_t x) { return bf16_to_f32(x); }
__device__ inline void load_eight(const float* from, float (&to)[8]) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(from)),
               high = __ldg(reinterpret_cast<const float4*>(from) + 1);
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}
__device__ inline void load_eight(const uint16_t* from, float (&to)[8]) {
  const uint4 bits = __ldg(reinterpret_cast<const uint4*>(from));
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    to[2 * i] = bits_to_f32(words[i] << 16), to[2 * i + 1] = bits_to_f32(words[i] & 0xffff0000u);
}

// v[i] of all lanes, summed in the tree of offsets 16, 8, 4, 2, 1 whatever N is. Afterwards the lane has N / 32 of the
// sums, at least one, the first of which is number first_sum<N>.
template <int N>
__device__ void sum_over_lanes(float (&v)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int count = N;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const bool upper = (lane & offset) != 0;
    if (count == 1) {
      v[0] += __shfl_xor_sync(~0u, v[0], offset);
      continue;
    }
    count /= 2;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      if (i >= count) continue;
      const float sent = upper ? v[i] : v[i + count];
      v[i] = (upper ? v[i + count] : v[i]) + __shfl_xor_sync(~0u, sent, offset);
    }
  }
}
template <int N>
__device__ int first_sum() {
  int first = 0, count = N;
  for (int offset = 16; offset > 0 && count > 1; offset /= 2) {
    count /= 2;
    first += (threadIdx.x & static_cast<unsigned>(offset)) != 0 ? count : 0;
  }
  return first;
}

// Of rows [n, n + kOutputs) of `w` and `count` rows of x, at most kRows: put(row of w, row of x, sum). Warp i takes
// each eighth piece of 256 of k, a lane eight neighbours of it in ascending order; then lanes in a tree and warps in
// order. No bit depends on the other rows, or on how many a block has. Element: float, or uint16_t for bf16.
template <class Element, int kOutputs, int kRows, class Put>
__device__ void multiply_split(const Mat& w, int64_t n, const float* x, int64_t x_ld, int count, Put put) {
  constexpr int kSums = kOutputs * kRows;
  __shared__ float shares[kSplitWarps][kSums];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto weights = [&](int i) {  // beyond the last is the last again
    return reinterpret_cast<const Element*>(w.data) + min(n + i, w.n - 1) * w.k;
  };
  const bool wide = w.k % kEight == 0 && x_ld % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  float sum[kSums] = {};
  for (int64_t at = threadIdx.x * kEight; at < w.k; at += kSplitThreads * kEight) {
    float a[kOutputs][kEight] = {}, b[kRows][kEight] = {};
    if (wide) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) load_eight(weights(i) + at, a[i]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) load_eight(x + min(r, count - 1) * x_ld + at, b[r]);
    } else {
      for (int j = 0; j < kEight && at + j < w.k; ++j) {
        for (int i = 0; i < kOutputs; ++i) a[i][j] = widened(weights(i)[at + j]);
        for (int r = 0; r < kRows; ++r) b[r][j] = x[min(r, count - 1) * x_ld + at + j];
      }
    }
#pragma unroll
    for (int i = 0; i < kOutputs; ++i)
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int j = 0; j < kEight; ++j) sum[i * kRows + r] = fmaf(a[i][j], b[r][j], sum[i * kRows + r]);
  }
  sum_over_lanes<kSums>(sum);
  constexpr int kLeft = kSums / 32 > 0 ? kSums / 32 : 1;
  if (kSums >= 32 || lane % (kSums >= 32 ? 1 : 32 / kSums) == 0) {
#pragma unroll
    for (int i = 0; i < kLeft; ++i) shares[warp][first_sum<kSums>() + i] = sum[i];
  }
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kSums || i % kRows >= count || n + i / kRows >= w.n) return;
  float total = 0;
  for (int s = 0; s < kSplitWarps; ++s) total += shares[s][i];
  put(n + i / kRows, i % kRows, total);
}

}  // namespace plumb::cuda
