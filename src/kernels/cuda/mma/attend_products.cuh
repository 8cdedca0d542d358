// The products with kv_b around the attention: queries into the latent space, and what was attended to out of it.
#pragma once

#include "kernels/cuda/mma/attend.cuh"

namespace plumb::cuda::mla {

template <WeightKind kind>
__global__ void __launch_bounds__(kThreads, 2) absorb_queries(Attend a) {
  extern __shared__ __align__(16) uint16_t memory[];
  const int padded = (a.nope + 15) / 16 * 16;
  constexpr int kWeightStride = kColumns + 8, kPieces = kColumns / 8;
  const int query_stride = padded + 8;
  uint16_t* weights = memory;                           // [padded][kWeightStride]
  uint16_t* queries = memory + padded * kWeightStride;  // [a.tokens][query_stride]
  const int h = static_cast<int>(blockIdx.x), first_column = static_cast<int>(blockIdx.y) * kColumns;
  const int first = static_cast<int>(blockIdx.z) * a.tokens, count = min(a.tokens, a.rows - first);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int64_t w_row = static_cast<int64_t>(h) * (a.nope + a.v);
  stage(
      padded * kPieces,
      [&](int i) {
        Eight<kind> eight;
        if (i / kPieces < a.nope) eight.load(a.kv_b, w_row + i / kPieces, first_column + i % kPieces * 8);
        return eight;
      },
      [&](int i, const Eight<kind>& eight) {
        *reinterpret_cast<uint4*>(weights + i / kPieces * kWeightStride + i % kPieces * 8) =
            i / kPieces < a.nope ? eight.decoded() : uint4{0, 0, 0, 0};
      });
  const int tiles = (count + 7) / 8;
  for (int t = warp; t < tiles * 8; t += kThreads / 32) {
    constexpr int kBatch = 8;
    const int64_t row = a.first_row + first + min(t, count - 1), column = static_cast<int64_t>(h) * (a.nope + a.rope);
    for (int begin = lane; begin < padded; begin += 32 * kBatch) {
      float x[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) x[j] = begin + 32 * j < a.nope ? a.q.load(row, column + begin + 32 * j) : 0.0f;
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (begin + 32 * j < padded) queries[t * query_stride + begin + 32 * j] = f32_to_bf16(x[j]);
    }
  }
  __syncthreads();
  const uint32_t w_at = shared_address(weights), q_at = shared_address(queries);
  float sum[kTokens / 8][4] = {};
  for (int k = 0; k < padded; k += 16) {
    uint32_t w[4];
    const int row = k + lane / 16 * 8 + lane % 8, column = warp * 16 + lane / 8 % 2 * 8;
    load_transposed(w, w_at + static_cast<uint32_t>(row * kWeightStride + column) * 2);
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      if (n >= tiles) break;
      uint32_t q[2];
      load_matrices(q, q_at + static_cast<uint32_t>((n * 8 + lane % 8) * query_stride + k + lane / 8 % 2 * 8) * 2);
      mma(sum[n], w, q[0], q[1]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = n * 8 + lane % 4 * 2 + i % 2, c = first_column + warp * 16 + lane / 4 + i / 2 * 8;
      if (t < count) a.q_lat[(static_cast<int64_t>(first + t) * a.heads + h) * a.rank + c] = f32_to_bf16(sum[n][i]);
    }
}

// o_lat of one row and head: the splits' parts by their shares of the softmax's sum. A warp; a lane has two of each 64
// elements.
__device__ inline void join(const Attend& a, int64_t local, int h, uint16_t* to) {
  constexpr int kMost = 512 / 64;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* log_sum = a.log_sum + local * a.splits * a.heads + h;
  const float* part = a.part + (local * a.splits * a.heads + h) * a.rank + lane * 2;
  float largest = -INFINITY;
  for (int s = lane; s < a.splits; s += 32) largest = fmaxf(largest, log_sum[s * a.heads]);
  for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
  float sum[kMost][2] = {}, total = 0;
  for (int begin = 0; begin < a.splits; begin += 32) {
    const float own = begin + lane < a.splits ? log_sum[(begin + lane) * a.heads] : -INFINITY;
    const float weight = own == -INFINITY ? 0.0f : exp2f(own - largest);
    const int count = min(32, a.splits - begin);
#pragma unroll 2
    for (int s = 0; s < count; ++s) {
      const float share = __shfl_sync(~0u, weight, s);
      if (share == 0) continue;  // a part that saw nothing was never written
      total += share;
      const float* from = part + static_cast<int64_t>(begin + s) * a.heads * a.rank;
      float2 value[kMost];
#pragma unroll
      for (int i = 0; i < kMost; ++i)
        if (64 * i < a.rank) value[i] = *reinterpret_cast<const float2*>(from + 64 * i);
#pragma unroll
      for (int i = 0; i < kMost; ++i)
        if (64 * i < a.rank)
          sum[i][0] = fmaf(share, value[i].x, sum[i][0]), sum[i][1] = fmaf(share, value[i].y, sum[i][1]);
    }
  }
  const float inverse = total == 0 ? 0.0f : 1.0f / total;
#pragma unroll
  for (int i = 0; i < kMost; ++i)
    if (64 * i < a.rank)
      *reinterpret_cast<uint32_t*>(to + lane * 2 + 64 * i) = pack_bf16(sum[i][0] * inverse, sum[i][1] * inverse);
}

template <WeightKind kind>
__global__ void __launch_bounds__(kThreads, 2) project_values(Attend a, const int32_t* sequence) {
  extern __shared__ __align__(16) uint16_t latents[];  // [a.tokens][rank + 8]
  const int stride = a.rank + 8;
  const int h = static_cast<int>(blockIdx.x), first_value = static_cast<int>(blockIdx.y) * kColumns;
  const int first = static_cast<int>(blockIdx.z) * a.tokens, count = min(a.tokens, a.rows - first);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, q = lane % 4;
  const int tiles = (count + 7) / 8;
  for (int t = warp; t < tiles * 8; t += kThreads / 32) {
    if (t < count && sequence[a.first_row + first + t] >= 0)
      join(a, first + t, h, latents + t * stride);
    else
      for (int c = lane * 2; c < a.rank; c += 64) *reinterpret_cast<uint32_t*>(latents + t * stride + c) = 0;
  }
  __syncthreads();
  const int low = first_value + warp * 16 + g, high = low + 8;
  const int64_t w_row = static_cast<int64_t>(h) * (a.nope + a.v) + a.nope;
  const int64_t w_low = w_row + min(low, a.v - 1), w_high = w_row + min(high, a.v - 1);
  float sum[kTokens / 8][4] = {};
  constexpr int kBatch = 4;  // of 32 k: a lane's eight are 8 q ... 8 q + 7 of them
  for (int k = 0; k < a.rank; k += 32 * kBatch) {
    Eight<kind> loaded[kBatch][2];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      loaded[j][0].load(a.kv_b, w_low, k + 32 * j + 8 * q);
      loaded[j][1].load(a.kv_b, w_high, k + 32 * j + 8 * q);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const uint4 l = loaded[j][0].decoded(), u = loaded[j][1].decoded();
      // The assembler would copy loaded registers together anew for each product; results it keeps as they are.
      const uint32_t even[4] = {l.x ^ a.zero, u.x ^ a.zero, l.y ^ a.zero, u.y ^ a.zero};
      const uint32_t odd[4] = {l.z ^ a.zero, u.z ^ a.zero, l.w ^ a.zero, u.w ^ a.zero};
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
        if (n >= tiles) break;
        const uint4 x = *reinterpret_cast<const uint4*>(latents + (n * 8 + g) * stride + k + 32 * j + 8 * q);
        mma(sum[n], even, x.x, x.y);
        mma(sum[n], odd, x.z, x.w);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = n * 8 + q * 2 + i % 2, value = i / 2 == 0 ? low : high;
      if (t < count && value < a.v)
        a.out.store(a.first_row + first + t, static_cast<int64_t>(h) * a.v + value, static_cast<double>(sum[n][i]),
                    a.round);
    }
}

}  // namespace plumb::cuda::mla
