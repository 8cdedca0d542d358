// Attention by Hopper's products (rank 512): a block takes one row, up to 64 heads and a part of the selected
// positions; the parts of a row are a cluster, whose blocks join what they found out of each other's shared memory.
//
// Four groups of four warps, 64 keys a tile, two tiles in shared memory. Two groups gather and decode, a tile ahead,
// and have asked for the one behind it; products are issued no faster than they run, so who multiplies has no time for
// it. Two groups score a tile (S = Q K^T; each half of the keys), keep an online softmax in base 2, and add up O^T +=
// V^T P^T, where V is the first 512 of K and each group has half of them: heads are the n of this product, so few of
// them take few registers and little time.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/mma/attend_gather.cuh"

namespace plumb::cuda::mla {

inline constexpr int kMostParts = 8;  // a cluster
inline constexpr int kMultiplyThreads = 2 * kGroupThreads;
inline constexpr int kClusterThreads = kMultiplyThreads + kGatherThreads;
// Of a thread, 128 at launch; in all no more than then, or the multiplying groups wait for ever.
inline constexpr int kMultiplyRegisters = 176, kGatherRegisters = 80;
static_assert(kMultiplyThreads * kMultiplyRegisters + kGatherThreads * kGatherRegisters <= kClusterThreads * 128);
static_assert(kMultiplyThreads == kThreads, "stage()");

template <int head_tiles>
struct ClusterLayout {  // of shared memory, in bytes
  static constexpr int kHeads = 8 * head_tiles;
  static constexpr int kQuery = 0;                               // 64 rows: zeros beyond the heads
  static constexpr int kLatent = TileLayout::kBytes;             // two tiles
  static constexpr int kProbs = 3 * TileLayout::kBytes;          // [heads][64 keys]
  static constexpr int kOfGroups = kProbs + kHeads * kKeys * 2;  // [2 groups][64 heads]: largest score, then sum
  static constexpr int kOfHeads = kOfGroups + 2 * 64 * 4;        // [64]: factor of what was added before, then largest
  static constexpr int kPresent = kOfHeads + 64 * 4;             // of two tiles, a bit a key
  static constexpr int kBarriers = kPresent + 2 * 8;             // of two tiles: full, full, empty, empty
  static constexpr int kUsed = kBarriers + 4 * 8;                // tiles
  static constexpr int kBytes = kUsed + 16;
  // When all is added up: O by head, in place of the tiles, and the parts' weights, in place of the queries.
  static constexpr int kSumStride = kClusterRank + 4;
  static_assert(kHeads * kSumStride * 4 <= 2 * TileLayout::kBytes && kBytes <= 227 * 1024);
};

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Queries of the block's heads, [head][576], in blocks as a tile's.
template <int head_tiles>
__device__ void stage_queries(const Attend& a, uint32_t query, int64_t local, int64_t t, int head0) {
  constexpr int kPieces = kClusterRank / 8;
  const int heads = min(a.heads - head0, 8 * head_tiles);
  const uint16_t* from = a.q_lat + (local * a.heads + head0) * kClusterRank;
#pragma unroll 8
  for (int i = thread_again(); i < 64 * kPieces; i += kThreads) {
    const int head = i / kPieces, piece = i % kPieces;
    copy_async_16(swizzled(query + static_cast<uint32_t>(piece / 8 * TileLayout::kBlock), head, piece % 8),
                  head < heads ? from + i * 8 : from, head < heads);
  }
  commit_copies();
  constexpr int kFours = kRopeWidth / 4;
  const bool aligned = fours_aligned(a.q, a.nope + a.rope) && a.nope % 4 == 0;
  stage(
      64 * kFours,
      [&](int i) {
        const int head = i / kFours, column = i % kFours * 4;
        FourOfQuery four;
        four.load(a.q, t, static_cast<int64_t>(head0 + head) * (a.nope + a.rope) + a.nope + column,
                  head < heads ? a.rope - column : 0, aligned);
        return four;
      },
      [&](int i, const FourOfQuery& four) {
        const uint32_t at = swizzled(query + TileLayout::kRope, i / kFours, i % kFours / 2) + i % 2 * 8;
        store_shared(at, pack_bf16(four.x[0], four.x[1]));
        store_shared(at + 4, pack_bf16(four.x[2], four.x[3]));
      });
  wait_for_copies();
}

// A thread's part of the scores of one tile: heads g and g + 8 of its warp's 16, keys 8 n + 2 q and the next one of
// its group's 32.
struct Scores {
  float s[16];
  float largest[2] = {-INFINITY, -INFINITY};  // so far
  float total[2] = {};                        // of this thread's keys

  __device__ void mask(uint32_t present, float scale) {
    const uint32_t mine = present >> (thread_again() % 4 * 2);
#pragma unroll
    for (int i = 0; i < 16; ++i) s[i] = (mine >> (i / 4 * 8 + i % 2) & 1u) != 0 ? s[i] * scale : -INFINITY;
  }
  __device__ float largest_of_row(int half) const {
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) most = fmaxf(most, s[i / 2 * 4 + half * 2 + i % 2]);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
  }
  // Probabilities relative to `most`, two keys at `pairs[n]`; the factor for what was added up before.
  __device__ float probabilities(int half, float most, uint32_t (&pairs)[4]) {
    const float factor = largest[half] == -INFINITY ? 0.0f : exp2_fast(largest[half] - most);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float p[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float x = s[n * 4 + half * 2 + j];
        p[j] = x == -INFINITY ? 0.0f : exp2_fast(x - most);
      }
      pairs[n] = pack_bf16(p[0], p[1]);
      sum += low_bf16(pairs[n]) + high_bf16(pairs[n]);
    }
    total[half] = fmaf(total[half], factor, sum);
    largest[half] = most;
    return factor;
  }
};

// What a block works on.
struct Part {
  int64_t local, t;  // row of the launch, of the step
  int split, head0, first, count;
  int32_t sequence, last;  // the row's, and its position

  __device__ Part(const Attend& a, const Paging& paging, int heads)
      : local(blockIdx.y),
        t(a.first_row + blockIdx.y),
        split(static_cast<int>(blockIdx.x)),
        head0(static_cast<int>(blockIdx.z) * heads),
        first(split * a.tiles * kKeys),
        count(max(0, min(a.tiles * kKeys, a.topk_count - first))),
        sequence(paging.sequence[t]),
        last(paging.positions[t]) {}
  __device__ const int32_t* topk(const Attend& a) const { return a.topk + t * a.topk_ld + first; }
};

// The cluster's parts of O by their shares of the softmax's sum, as bf16 in place of the queries.
template <int head_tiles>
__device__ void join_parts(const Attend& a, unsigned char* memory, const Part& part) {
  using L = ClusterLayout<head_tiles>;
  const auto cluster = cooperative_groups::this_cluster();
  const int tid = thread_again();
  const auto of_part = [&](float* own, int part_of) {
    return a.splits > 1 ? cluster.map_shared_rank(own, part_of) : own;
  };
  auto* largest = reinterpret_cast<float*>(memory + L::kOfHeads);
  auto* totals = reinterpret_cast<float*>(memory + L::kOfGroups);
  auto* weights = reinterpret_cast<float*>(memory + L::kQuery);  // [parts][64]
  if (tid < L::kHeads) {
    float part_largest[kMostParts], part_total[kMostParts], most = -INFINITY, total = 0;
#pragma unroll
    for (int s = 0; s < kMostParts; ++s) {
      if (s >= a.splits) continue;
      part_largest[s] = of_part(largest, s)[tid];
      const float* both = of_part(totals, s);
      part_total[s] = both[tid] + both[64 + tid];
      most = fmaxf(most, part_largest[s]);
    }
#pragma unroll
    for (int s = 0; s < kMostParts; ++s) {
      if (s >= a.splits) continue;
      part_largest[s] = part_largest[s] == -INFINITY ? 0.0f : exp2_fast(part_largest[s] - most);
      total = fmaf(part_total[s], part_largest[s], total);
    }
#pragma unroll
    for (int s = 0; s < kMostParts; ++s)
      if (s < a.splits) weights[s * 64 + tid] = total == 0 ? 0.0f : part_largest[s] / total;
  }
  meet(1, kMultiplyThreads);
  auto* sums = reinterpret_cast<float*>(memory + L::kLatent);
  const int heads = min(a.heads - part.head0, L::kHeads);
  uint16_t* to = a.q_lat + (part.local * a.heads + part.head0) * kClusterRank;
#pragma unroll 4
  for (int i = part.split * kThreads + tid; i < heads * (kClusterRank / 4); i += a.splits * kThreads) {
    const int head = i / (kClusterRank / 4), column = i % (kClusterRank / 4) * 4;
    float4 found[kMostParts];
#pragma unroll
    for (int s = 0; s < kMostParts; ++s)
      if (s < a.splits) found[s] = *reinterpret_cast<float4*>(of_part(sums + head * L::kSumStride + column, s));
    float4 sum{};
#pragma unroll
    for (int s = 0; s < kMostParts; ++s) {
      if (s >= a.splits) continue;
      const float w = weights[s * 64 + head];
      sum.x = fmaf(w, found[s].x, sum.x), sum.y = fmaf(w, found[s].y, sum.y);
      sum.z = fmaf(w, found[s].z, sum.z), sum.w = fmaf(w, found[s].w, sum.w);
    }
    *reinterpret_cast<uint2*>(to + head * kClusterRank + column) = {pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w)};
  }
}

template <int head_tiles, bool fp8, bool wide>
__device__ void gather_tiles(const Attend& a, const Paging& paging, const KvView& kv, unsigned char* memory) {
  using L = ClusterLayout<head_tiles>;
  const Part part(a, paging, L::kHeads);
  const int tid = thread_again() - kMultiplyThreads, lane = tid % 32;
  const uint32_t base = shared_address(memory);
  Gather<fp8, wide> gather{.attend = a,
                           .paging = paging,
                           .topk = part.topk(a),
                           .cache = reinterpret_cast<const uint8_t*>(kv.latent) + lane * 16,
                           .sequence = part.sequence,
                           .last = part.last,
                           .count = part.count,
                           .row_bytes = static_cast<int>(latent_row_bytes_of(kv.geometry)),
                           .warp = tid / 32,
                           .lane = lane};
  gather.start();
  const int used = *reinterpret_cast<const volatile int*>(memory + L::kUsed);
  for (int tile = 0; tile < used; ++tile) {
    const int buffer = tile % 2;
    if (tile >= 2) wait(base + L::kBarriers + 16 + buffer * 8, tile / 2 - 1);
    gather.begin(tile, base + L::kLatent + static_cast<uint32_t>(buffer * TileLayout::kBytes),
                 memory + L::kPresent + buffer * 8);
    gather.finish();
    arrive(base + L::kBarriers + buffer * 8);
  }
}

template <int head_tiles>
__device__ void multiply_tiles(const Attend& a, const Paging& paging, unsigned char* memory) {
  using L = ClusterLayout<head_tiles>;
  const Part part(a, paging, L::kHeads);
  const int tid = thread_again(), lane = tid % 32;
  const int warp = __shfl_sync(~0u, tid / 32, 0), group = warp / 4;  // known to be the same in all lanes
  const uint32_t base = shared_address(memory), probs = base + L::kProbs;
  const auto together = [] { meet(1, kMultiplyThreads); };
  cudaGridDependencySynchronize();
  stage_queries<head_tiles>(a, base + L::kQuery, part.local, part.t, part.head0);
  publish_shared();
  together();
  const int used = *reinterpret_cast<const volatile int*>(memory + L::kUsed);
  auto* of_groups = reinterpret_cast<float*>(memory + L::kOfGroups);
  auto* of_heads = reinterpret_cast<float*>(memory + L::kOfHeads);
  const int row = warp % 4 * 16 + lane / 4;  // of the scores: this thread's heads are row and row + 8
  Scores scores;
  float sum[4][4 * head_tiles] = {};
  for (int tile = 0; tile < used; ++tile) {
    const uint32_t latent = base + L::kLatent + static_cast<uint32_t>(tile % 2 * TileLayout::kBytes);
    wait(base + L::kBarriers + static_cast<uint32_t>(tile % 2 * 8), tile / 2);
    // Worked out anew for each tile: kept in registers over the loop, where an operand begins takes 72 of them.
    uint32_t at_queries;
    asm volatile("mov.u32 %0, %1;" : "=r"(at_queries) : "r"(base + L::kQuery));
    const uint64_t queries = rows_of(at_queries), keys = rows_of(latent + static_cast<uint32_t>(group * 32 * 128));
    begin_products();
#pragma unroll
    for (int step = 0; step < TileLayout::kBytes / TileLayout::kBlock * 4; ++step) {
      const auto at = static_cast<uint64_t>(step / 4 * (TileLayout::kBlock / 16) + step % 4 * 2);
      multiply_shared(scores.s, queries + at, keys + at, step > 0);
    }
    commit_products();
    wait_for_products<0>();
    pin(scores.s);
    scores.mask(*reinterpret_cast<const volatile uint32_t*>(memory + L::kPresent + tile % 2 * 8 + group * 4), a.scale);
    float most[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(scores.largest[half], scores.largest_of_row(half));
      if (lane % 4 == 0) of_groups[group * 64 + row + half * 8] = most[half];
    }
    together();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = row + half * 8;
      uint32_t pairs[4];
      const float factor = scores.probabilities(half, fmaxf(most[half], of_groups[(1 - group) * 64 + head]), pairs);
      if (group == 0 && lane % 4 == 0) of_heads[head] = factor;
      if (head >= L::kHeads) continue;
#pragma unroll
      for (int n = 0; n < 4; ++n)
        store_shared(swizzled(probs, head, group * 4 + n) + static_cast<uint32_t>(lane % 4 * 4), pairs[n]);
    }
    publish_shared();
    together();
#pragma unroll
    for (int n = 0; n < head_tiles; ++n) {
      const float2 factor = *reinterpret_cast<const float2*>(of_heads + n * 8 + lane % 4 * 2);
#pragma unroll
      for (int m = 0; m < 4; ++m)
        sum[m][n * 4] *= factor.x, sum[m][n * 4 + 1] *= factor.y, sum[m][n * 4 + 2] *= factor.x,
            sum[m][n * 4 + 3] *= factor.y;
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) pin(sum[m]);
    begin_products();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
#pragma unroll
      for (int m = 0; m < 4; ++m)
        multiply_across(sum[m],
                        columns_of(latent + static_cast<uint32_t>((group * 4 + m) * TileLayout::kBlock)) +
                            static_cast<uint64_t>(step * 2 * kSwizzleBytes / 16),
                        rows_of(probs) + static_cast<uint64_t>(step * 2), true);
    commit_products();
    wait_for_products<0>();
#pragma unroll
    for (int m = 0; m < 4; ++m) pin(sum[m]);
    arrive(base + L::kBarriers + 16 + static_cast<uint32_t>(tile % 2 * 8));
  }
  together();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = scores.total[half];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (lane % 4 != 0) continue;
    of_groups[group * 64 + row + half * 8] = total;
    if (group == 0) of_heads[row + half * 8] = scores.largest[half];
  }
  auto* sums = reinterpret_cast<float*>(memory + L::kLatent);
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int i = 0; i < 4 * head_tiles; ++i)
      sums[(i / 4 * 8 + lane % 4 * 2 + i % 2) * L::kSumStride + (group * 4 + m) * 64 + row + i % 4 / 2 * 8] = sum[m][i];
  const auto cluster = cooperative_groups::this_cluster();
  if (a.splits > 1)
    cluster.sync();  // of those that have not left: the gathering warps have
  else
    together();
  join_parts<head_tiles>(a, memory, part);
  if (a.splits > 1) cluster.sync();  // nobody leaves while another reads
}

// Blocks: [parts, rows, groups of heads]; the parts are a cluster. The cache is looked up while the queries are made.
template <int head_tiles, bool fp8, bool wide>
__global__ void __launch_bounds__(kClusterThreads, 1) attend_cluster(Attend a, Paging paging, KvView kv) {
  extern __shared__ __align__(kSwizzleBytes) unsigned char attend_memory[];
  using L = ClusterLayout<head_tiles>;
  cudaTriggerProgrammaticLaunchCompletion();
  {
    const Part part(a, paging, L::kHeads);
    if (part.sequence < 0) return cudaGridDependencySynchronize();
    auto* used = reinterpret_cast<int*>(attend_memory + L::kUsed);
    const bool all = part.last + 1 >= a.topk_count;  // as many positions as asked for: all tiles are in use
    if (threadIdx.x == 0) {
      *used = all ? (part.count + kKeys - 1) / kKeys : 0;
      for (int i = 0; i < 4; ++i)
        init_barrier(shared_address(attend_memory) + L::kBarriers + i * 8, i < 2 ? kGatherThreads : kMultiplyThreads);
    }
    __syncthreads();
    if (!all) {
      int behind = 0;  // the last tile with a position
      const int32_t* topk = part.topk(a);
      for (int i = static_cast<int>(threadIdx.x); i < part.count; i += kClusterThreads)
        if (topk[i] >= 0 && topk[i] <= part.last) behind = i / kKeys + 1;
      if (behind > 0) atomicMax(used, behind);
      __syncthreads();
    }
  }
  if (threadIdx.x >= kMultiplyThreads) {
    fewer_registers<kGatherRegisters>();
    gather_tiles<head_tiles, fp8, wide>(a, paging, kv, attend_memory);
  } else {
    more_registers<kMultiplyRegisters>();
    multiply_tiles<head_tiles>(a, paging, attend_memory);
  }
}

}  // namespace plumb::cuda::mla
