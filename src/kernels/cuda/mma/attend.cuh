// What the kernels of sparse MLA share: see attend.cu.
#pragma once

#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/mma/fragments.cuh"

namespace plumb::cuda::mla {

inline constexpr int kThreads = 256;
inline constexpr int kKeys = 64;       // of a tile
inline constexpr int kRopeWidth = 64;  // columns kept for the rope part
inline constexpr int kTokens = 64;     // at most, of one block of absorb_queries and project_values
inline constexpr int kColumns = 128;   // of the latent (absorb_queries) or of the values (project_values) in one block
inline constexpr int kScoreStride = kKeys + 4;        // floats
inline constexpr int kProbStride = 2 * kScoreStride;  // bf16: a head's probabilities take the place of its scores
inline constexpr int kMaxTopk = 4096;                 // rows of one split that shared memory can list

struct Attend {
  Act q{};
  Mat kv_b{};
  int heads = 0, nope = 0, rope = 0, v = 0, rank = 0;
  float scale = 0;  // of the softmax, times log2 e
  const int32_t* topk = nullptr;
  int64_t topk_ld = 0;
  int topk_count = 0;
  int64_t first_row = 0;
  int rows = 0, splits = 0, tiles = 0;  // of this launch; tiles of one split
  int tokens = 0;                       // of one block of absorb_queries and project_values
  uint16_t* q_lat = nullptr;            // [rows, heads, rank]; attend_cluster leaves its results in their place
  float* part = nullptr;                // [rows, splits, heads, rank], normalised: of attend_split
  float* log_sum = nullptr;             // [rows, splits, heads], base 2
  Act out{};
  bool round = false;
  uint32_t zero = 0;  // unknown to the compiler
};

// put(i, load(i)) for this thread's share of 0 ... count - 1, with eight loads under way.
template <class Load, class Put>
__device__ void stage(int count, Load load, Put put) {
  constexpr int kBatch = 8;
  for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kBatch * kThreads) {
    decltype(load(0)) loaded[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (begin + j * kThreads < count) loaded[j] = load(begin + j * kThreads);
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (begin + j * kThreads < count) put(begin + j * kThreads, loaded[j]);
  }
}

// Four neighbouring elements of a query, of which `count` are there; zeros in place of the others.
struct FourOfQuery {
  float x[4];
  __device__ void load(const Act& q, int64_t row, int64_t at, int count, bool aligned) {
    if (aligned && count >= 4) {
      const float4 v = *reinterpret_cast<const float4*>(static_cast<const float*>(q.data) + row * q.ld + at);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = i < count ? q.load(row, at + i) : 0.0f;
  }
};
__device__ inline bool fours_aligned(const Act& q, int64_t head_elements) {
  return !q.bf16 && q.ld % 4 == 0 && head_elements % 4 == 0 && reinterpret_cast<uintptr_t>(q.data) % 16 == 0;
}

}  // namespace plumb::cuda::mla
