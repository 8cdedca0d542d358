// Attention over a part of the selected positions: up to 64 heads and one row a block of four groups of four warps.
// The last two gather 64 rows of the cache at a time and write them as bf16 where products read them, one tile ahead;
// the first multiplies queries with keys, keeps an online softmax in base 2, and adds up one half of the values; the
// second is given the probabilities and adds up the other half.
#pragma once

#include "kernels/cuda/mma/attend.cuh"
#include "kernels/cuda/mma/wgmma.cuh"

namespace plumb::cuda::mla {

inline constexpr int kGatherThreads = 2 * kGroupThreads;
inline constexpr int kSplitThreads = 2 * kGroupThreads + kGatherThreads;
// Of a thread: 128 at launch, then these of the first, the second and the gathering groups.
inline constexpr int kFirstRegisters = 208, kSecondRegisters = 176, kGatherRegisters = 64;

template <int rank_width>
struct SplitLayout {  // of attend_split's shared memory, in bytes from a multiple of kSwizzleBytes
  static constexpr int kWidth = rank_width + kRopeWidth;
  static constexpr int kBlock = kKeys * 128;  // 64 elements of 64 rows
  static constexpr int kTileBytes = kWidth / 64 * kBlock;
  static constexpr int kRopeBlock = rank_width / 64 * kBlock;
  static constexpr int kQuery = 0;
  static constexpr int kLatent = kTileBytes;  // two tiles
  static constexpr int kProbs = kLatent + 2 * kTileBytes;
  static constexpr int kFactors = kProbs + kKeys * kHeads * 2;
  static constexpr int kPresent = kFactors + kGroupThreads * 8;  // of two tiles, a bit a key
  static constexpr int kBarriers = kPresent + 2 * 8;             // full, full, empty, empty
  static constexpr int kUsed = kBarriers + 4 * 8;
  static constexpr int kBytes = kUsed + 8 + kSwizzleBytes;
};

// E4M3 codes 0 and 1 of `pair` times scale, rounded to bf16.
__device__ inline uint32_t scaled_codes(uint32_t pair, float scale) {
  float low, high;
  unpack_halves(halves_of(pair), low, high);
  return pack_bf16(low * scale, high * scale);
}
// The thread's number, asked anew: what was known of it before a role began has been seen lost there (ptxas 13.0).
__device__ inline int thread_again() {
  int tid;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
  return tid;
}

// One of the warps that gather: eight keys of each tile, whose rows its lanes know (lanes i, i + 8, ... key i's).
// `wide`: a row and its parts begin at multiples of 16 bytes; else of four.
template <int rank_width, bool wide>
struct Gatherer {
  using L = SplitLayout<rank_width>;
  static constexpr int kEach = kKeys / (kGatherThreads / 32);
  static_assert(kEach == 8, "a byte of `present` a warp");
  const Attend& a;
  const Paging& paging;
  const uint8_t* cache;
  unsigned char* memory;
  int64_t t;
  int32_t sequence, last;
  int first, row_bytes;
  int warp, lane;

  __device__ int32_t index(int tile) const {
    const int at = (first + tile) * kKeys + warp * kEach + lane % kEach;
    const int32_t i = tile < a.tiles && at < a.topk_count ? a.topk[t * a.topk_ld + at] : -1;
    return i <= last ? i : -1;
  }
  __device__ int32_t row(int32_t i) const {
    return i < 0 ? -1 : page_at(paging, sequence, i) * paging.page_tokens + i % paging.page_tokens;
  }
  __device__ const uint8_t* at(int32_t row) const { return cache + static_cast<int64_t>(max(row, 0)) * row_bytes; }
  __device__ uint32_t latent(int buffer) const { return shared_address(memory) + L::kLatent + buffer * L::kTileBytes; }
  __device__ uint32_t barrier(int which) const { return shared_address(memory) + L::kBarriers + which * 8; }
  // The tile is in `buffer`: so say all threads that gather.
  __device__ void hand_over(int buffer, int32_t mine) const {
    const unsigned present = __ballot_sync(~0u, mine >= 0);
    if (lane == 0) memory[L::kPresent + buffer * 8 + warp] = static_cast<uint8_t>(present);
    publish_shared();
    arrive(barrier(buffer));
  }
  // 16-bit elements of the keys' bytes [from, from + count) into 64-element blocks from `block` on. Nothing waits.
  __device__ void copy_keys(uint32_t block, int32_t mine, int from, int count) const {
    constexpr int kPiece = wide ? 16 : 4;
    const int pieces = count / kPiece;
    const int together = pieces >= 32 ? 32 : 8;  // lanes that copy one key
#pragma unroll 4
    for (int begin = 0; begin < kEach; begin += 32 / together) {
      const int key = begin + lane / together;
      const int32_t r = __shfl_sync(~0u, mine, key);
      const uint8_t* source = at(r) + from;
      for (int piece = lane % together; piece < pieces; piece += together) {
        const int byte = piece * kPiece;
        const uint32_t to =
            swizzled(block + static_cast<uint32_t>(byte / 128 * L::kBlock), warp * kEach + key, byte % 128 / 16) +
            static_cast<uint32_t>(byte % 16);
        if constexpr (wide)
          copy_async_16(to, source + byte, r >= 0);
        else
          copy_async_4(to, source + byte, r >= 0);
      }
    }
  }

  // FP8: a lane has 16 latent elements of each key, and the scale of chunk lane % 4 of key lane / 4.
  struct Codes {
    uint4 sixteen[kEach];
    float scale;
  };
  __device__ void load(Codes& to, int32_t mine) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int32_t r = __shfl_sync(~0u, mine, i);
      const uint8_t* from = at(r) + lane * 16;
      to.sixteen[i] = {0, 0, 0, 0};
      if (r < 0 || lane * 16 >= a.rank) continue;
      if constexpr (wide) {
        to.sixteen[i] = __ldg(reinterpret_cast<const uint4*>(from));
      } else {
        const auto* words = reinterpret_cast<const uint32_t*>(from);
        to.sixteen[i] = {__ldg(words), __ldg(words + 1), __ldg(words + 2), __ldg(words + 3)};
      }
    }
    const int32_t r = __shfl_sync(~0u, mine, lane / 4);
    const bool there = r >= 0 && lane % 4 * kLatentTile < a.rank;
    to.scale = there ? __ldg(reinterpret_cast<const float*>(at(r) + a.rank) + lane % 4) : 0.0f;
  }
  __device__ void store(const Codes& from, uint32_t tile) const {
    const bool odd = lane / 4 % 2 != 0;  // these lanes write their second piece first: all banks are busy
    const uint32_t block = tile + static_cast<uint32_t>(lane / 4 * L::kBlock);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint4 c = from.sixteen[i];
      const float s = __shfl_sync(~0u, from.scale, i * 4 + lane / 8);
      const uint4 low = {scaled_codes(c.x, s), scaled_codes(c.x >> 16, s), scaled_codes(c.y, s),
                         scaled_codes(c.y >> 16, s)};
      const uint4 high = {scaled_codes(c.z, s), scaled_codes(c.z >> 16, s), scaled_codes(c.w, s),
                          scaled_codes(c.w >> 16, s)};
      const int key = warp * kEach + i;
      if (lane * 16 >= rank_width) continue;
      store_shared(swizzled(block, key, lane % 4 * 2 + (odd ? 1 : 0)), odd ? high : low);
      store_shared(swizzled(block, key, lane % 4 * 2 + (odd ? 0 : 1)), odd ? low : high);
    }
  }

  __device__ void run_fp8(int used) const {
    const int rope_at = a.rank + (a.rank + kLatentTile - 1) / kLatentTile * 4;
    int32_t now = row(index(0)), next = row(index(1)), later = index(2);
    Codes codes;
    load(codes, now);
    for (int tile = 0; tile < used; ++tile) {
      const int buffer = tile % 2;
      const int32_t after = row(later);
      later = index(tile + 3);
      wait(barrier(2 + buffer), tile / 2 + 1);
      copy_keys(latent(buffer) + L::kRopeBlock, now, rope_at, a.rope * 2);
      commit_copies();
      store(codes, latent(buffer));
      if (tile + 1 < used) load(codes, next);
      wait_for_copies();
      hand_over(buffer, now);
      now = next, next = after;
    }
  }
  __device__ void run_bf16(int used) const {
    int32_t before = -1, now = row(index(0)), next = row(index(1)), later = index(2);
    for (int tile = 0; tile <= used; ++tile) {
      const int32_t after = row(later);
      later = index(tile + 3);
      if (tile < used) {
        wait(barrier(2 + tile % 2), tile / 2 + 1);
        copy_keys(latent(tile % 2), now, 0, a.rank * 2);
        copy_keys(latent(tile % 2) + L::kRopeBlock, now, a.rank * 2, a.rope * 2);
      }
      commit_copies();
      wait_for_copies_but_one();
      if (tile > 0) hand_over((tile - 1) % 2, before);
      before = now, now = next, next = after;
    }
  }
};

// A thread's probabilities, as A fragments of four steps of 16 keys.
using Probs = uint32_t[kKeys / 16][4];

template <int width>
__device__ void rescale(float (&sum)[width], const float2& factor) {
  if (__all_sync(~0u, factor.x == 1.0f && factor.y == 1.0f)) return;
#pragma unroll
  for (int i = 0; i < width; ++i) sum[i] *= i % 4 < 2 ? factor.x : factor.y;
}
// sum += P . V of this group's half of the latent, which begins at `block`: as many columns at once as one product of
// which registers are left for.
template <int width>
__device__ void add_values(float (&sum)[width], const Probs& p, uint32_t block, int block_bytes) {
  constexpr int kAtOnce = width < 64 ? width : 64;
  begin_products();
#pragma unroll
  for (int begin = 0; begin < width; begin += kAtOnce) {
    const uint64_t values =
        columns_of(block + static_cast<uint32_t>(begin / 32 * block_bytes), static_cast<uint32_t>(block_bytes));
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      multiply_across(*reinterpret_cast<float(*)[kAtOnce]>(sum + begin), p[step],
                      values + static_cast<uint64_t>(step * 2 * kSwizzleBytes / 16), true);
  }
  commit_products();
}

// What a thread knows of its rows g and g + 8 of the 64 heads.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {};  // of this thread's keys

  // Scores to probabilities, relative to the largest so far; the factors for what was summed before.
  __device__ float2 next(const float (&s)[kKeys / 2], uint64_t present, float scale, Probs& p) {
    const int q = thread_again() % 4;
    const uint64_t mine = present >> (2 * q);
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = largest[half];
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i)
        if ((mine >> (i / 2 * 8 + i % 2) & 1u) != 0) most = fmaxf(most, s[i / 2 * 4 + half * 2 + i % 2] * scale);
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      factor[half] = largest[half] == -INFINITY ? 0.0f : exp2f(largest[half] - most);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i) {
        float pair[2];
#pragma unroll
        for (int j = 0; j < 2; ++j)
          pair[j] = (mine >> (i * 8 + j) & 1u) != 0 ? exp2f(s[i * 4 + half * 2 + j] * scale - most) : 0.0f;
        const uint32_t rounded = pack_bf16(pair[0], pair[1]);
        sum += low_bf16(rounded) + high_bf16(rounded);
        p[i / 2][i % 2 * 2 + half] = rounded;
      }
      total[half] = total[half] * factor[half] + sum;
      largest[half] = most;
    }
    return {factor[0], factor[1]};
  }
};

enum Meeting { kProbsTaken = 1, kProbsThere = 2, kQueries = 3 };

template <int rank_width>
__device__ void store_part(const Attend& a, int64_t local, int split, int head0, int first_column,
                           const float (&sum)[rank_width / 4], const float2& inverse) {
  const int warp = thread_again() % kGroupThreads / 32, lane = thread_again() % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = head0 + warp * 16 + lane / 4 + half * 8;
    if (head >= a.heads) continue;
    const float factor = half == 0 ? inverse.x : inverse.y;
    float* out = a.part + ((local * a.splits + split) * a.heads + head) * a.rank;
#pragma unroll
    for (int i = 0; i < rank_width / 16; ++i) {
      const int c = first_column + i * 8 + lane % 4 * 2;
      if (c < a.rank)
        *reinterpret_cast<float2*>(out + c) = {sum[i * 4 + half * 2] * factor, sum[i * 4 + half * 2 + 1] * factor};
    }
  }
}

template <int rank_width>
__device__ void attend_first(const Attend& a, unsigned char* memory, int used, int64_t local, int split, int head0) {
  using L = SplitLayout<rank_width>;
  constexpr int kSum = rank_width / 4;
  const int tid = thread_again();
  const uint32_t base = shared_address(memory), latent = base + L::kLatent, barriers = base + L::kBarriers;
  const uint64_t query = rows_of(base + L::kQuery);
  float scores[kKeys / 2], sum[kSum] = {};
  const auto score = [&](int tile) {
    wait(barriers + tile % 2 * 8, tile / 2);
    const uint64_t keys = rows_of(latent + tile % 2 * L::kTileBytes);
    begin_products();
#pragma unroll
    for (int step = 0; step < L::kWidth / 16; ++step) {
      const auto offset = static_cast<uint64_t>(step / 4 * L::kBlock / 16 + step % 4 * 2);
      multiply_shared(scores, query + offset, keys + offset, step > 0);
    }
    commit_products();
  };
  Softmax softmax;
  Probs probs;
  if (used > 0) score(0);
  wait_for_products<0>();
  for (int tile = 0; tile < used; ++tile) {
    pin(scores);
    const uint64_t present = *reinterpret_cast<const volatile uint64_t*>(memory + L::kPresent + tile % 2 * 8);
    const float2 factor = softmax.next(scores, present, a.scale, probs);
    meet(kProbsTaken, 2 * kGroupThreads);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      store_shared(base + L::kProbs + static_cast<uint32_t>((step * kGroupThreads + tid) * 16),
                   {probs[step][0], probs[step][1], probs[step][2], probs[step][3]});
    reinterpret_cast<float2*>(memory + L::kFactors)[tid] = factor;
    announce(kProbsThere, 2 * kGroupThreads);
    rescale(sum, factor);
    pin(sum);
    add_values(sum, probs, latent + tile % 2 * L::kTileBytes, L::kBlock);
    wait_for_products<0>();
    pin(sum);
    arrive(barriers + (2 + tile % 2) * 8);  // before the next tile is needed: that may wait for this one's place
    if (tile + 1 < used) score(tile + 1);
    wait_for_products<0>();
  }
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = softmax.total[half];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    inverse[half] = total == 0 ? 0.0f : 1.0f / total;
    const int head = head0 + tid / 32 * 16 + tid % 32 / 4 + half * 8;
    if (tid % 4 == 0 && head < a.heads)
      a.log_sum[(local * a.splits + split) * a.heads + head] =
          total == 0 ? -INFINITY : softmax.largest[half] + log2f(total);
  }
  meet(kProbsTaken, 2 * kGroupThreads);
  reinterpret_cast<float2*>(memory + L::kFactors)[tid] = {inverse[0], inverse[1]};
  announce(kProbsThere, 2 * kGroupThreads);
  store_part<rank_width>(a, local, split, head0, 0, sum, {inverse[0], inverse[1]});
}

template <int rank_width>
__device__ void attend_second(const Attend& a, unsigned char* memory, int used, int64_t local, int split, int head0) {
  using L = SplitLayout<rank_width>;
  constexpr int kSum = rank_width / 4;
  const int tid = thread_again() - kGroupThreads;
  const uint32_t base = shared_address(memory), barriers = base + L::kBarriers;
  const auto* factors = reinterpret_cast<const volatile float*>(memory + L::kFactors) + 2 * tid;
  float sum[kSum] = {};
  announce(kProbsTaken, 2 * kGroupThreads);
  for (int tile = 0; tile < used; ++tile) {
    meet(kProbsThere, 2 * kGroupThreads);
    Probs probs;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(probs[step][0]), "=r"(probs[step][1]), "=r"(probs[step][2]), "=r"(probs[step][3])
                   : "r"(base + L::kProbs + static_cast<uint32_t>((step * kGroupThreads + tid) * 16))
                   : "memory");
    const float2 factor = {factors[0], factors[1]};
    announce(kProbsTaken, 2 * kGroupThreads);
    rescale(sum, factor);
    pin(sum);
    wait(barriers + tile % 2 * 8, tile / 2);
    add_values(sum, probs, base + L::kLatent + tile % 2 * L::kTileBytes + rank_width / 128 * L::kBlock, L::kBlock);
    wait_for_products<0>();
    pin(sum);
    arrive(barriers + (2 + tile % 2) * 8);
  }
  meet(kProbsThere, 2 * kGroupThreads);
  store_part<rank_width>(a, local, split, head0, rank_width / 2, sum, {factors[0], factors[1]});
}

// Queries of the block's heads into shared memory, zeros beyond them and beyond the rope part.
template <int rank_width>
__device__ void stage_queries(const Attend& a, uint32_t query, int64_t local, int64_t t, int head0) {
  using L = SplitLayout<rank_width>;
  constexpr int kPieces = rank_width / 8;
  cudaGridDependencySynchronize();
  stage<2 * kGroupThreads>(
      kHeads * kPieces,
      [&](int i) {
        const int head = head0 + i / kPieces, column = i % kPieces * 8;
        return head < a.heads && column < a.rank
                   ? *reinterpret_cast<const uint4*>(a.q_lat + (local * a.heads + head) * a.rank + column)
                   : uint4{0, 0, 0, 0};
      },
      [&](int i, const uint4& eight) {
        store_shared(swizzled(query + i % kPieces / 8 * L::kBlock, i / kPieces, i % kPieces % 8), eight);
      });
  stage<2 * kGroupThreads>(
      kHeads * kRopeWidth / 2,
      [&](int i) {
        const int head = head0 + i / (kRopeWidth / 2), column = i % (kRopeWidth / 2) * 2;
        const int64_t at = static_cast<int64_t>(head) * (a.nope + a.rope) + a.nope + column;
        return head < a.heads && column < a.rope ? pack_bf16(a.q.load(t, at), a.q.load(t, at + 1)) : 0u;
      },
      [&](int i, uint32_t pair) {
        const int word = i % (kRopeWidth / 2);
        store_shared(
            swizzled(query + L::kRopeBlock, i / (kRopeWidth / 2), word / 4) + static_cast<uint32_t>(word % 4 * 4),
            pair);
      });
  publish_shared();
  meet(kQueries, 2 * kGroupThreads);
}

// Blocks: [rows, splits, groups of 64 heads]. The gathering may begin while the queries are still made.
template <int rank_width, bool fp8>
__global__ void __launch_bounds__(kSplitThreads, 1) attend_split(Attend a, Paging paging, KvView kv) {
  extern __shared__ unsigned char shared[];
  using L = SplitLayout<rank_width>;
  auto* memory = shared + (kSwizzleBytes - shared_address(shared) % kSwizzleBytes) % kSwizzleBytes;
  cudaTriggerProgrammaticLaunchCompletion();
  const int64_t local = blockIdx.x, t = a.first_row + local;
  const int split = static_cast<int>(blockIdx.y), head0 = static_cast<int>(blockIdx.z) * kHeads;
  const int32_t sequence = paging.sequence[t], last = paging.positions[t];
  if (sequence < 0) return cudaGridDependencySynchronize();
  const int tid = static_cast<int>(threadIdx.x);
  auto* used_tiles = reinterpret_cast<int*>(memory + L::kUsed);
  const uint32_t base = shared_address(memory);
  if (tid == 0) {
    *used_tiles = 0;
    for (int i = 0; i < 4; ++i) init_barrier(base + L::kBarriers + i * 8, i < 2 ? kGatherThreads : 2 * kGroupThreads);
    publish_shared();
  }
  // Columns beyond the rank and the rope part stay zero.
  for (int i = tid; i < 2 * L::kTileBytes / 16; i += kSplitThreads)
    store_shared(base + L::kLatent + i * 16, {0, 0, 0, 0});
  __syncthreads();
  int tile = 0;  // behind the last with a position
  for (int i = tid; i < a.tiles * kKeys; i += kSplitThreads) {
    const int at = split * a.tiles * kKeys + i;
    const int32_t index = at < a.topk_count ? a.topk[t * a.topk_ld + at] : -1;
    if (index >= 0 && index <= last) tile = i / kKeys + 1;
  }
  if (tile > 0) atomicMax(used_tiles, tile);
  publish_shared();
  __syncthreads();
  const int used = *used_tiles;
  if (tid >= 2 * kGroupThreads) {
    fewer_registers<kGatherRegisters>();
    const auto* cache = reinterpret_cast<const uint8_t*>(kv.latent);
    const auto row_bytes = static_cast<int>(latent_row_bytes_of(kv.geometry));
    const auto gather = [&](const auto& gatherer) {
      if constexpr (fp8)
        gatherer.run_fp8(used);
      else
        gatherer.run_bf16(used);
    };
    const int warp = tid / 32 - 2 * kGroupThreads / 32, first = split * a.tiles;
    if (row_bytes % 16 == 0 && a.rope % 8 == 0 && (!fp8 || a.rank == 512))
      gather(Gatherer<rank_width, true>{a, paging, cache, memory, t, sequence, last, first, row_bytes, warp, tid % 32});
    else
      gather(
          Gatherer<rank_width, false>{a, paging, cache, memory, t, sequence, last, first, row_bytes, warp, tid % 32});
  } else if (tid >= kGroupThreads) {
    more_registers<kSecondRegisters>();
    stage_queries<rank_width>(a, base + L::kQuery, local, t, head0);
    attend_second<rank_width>(a, memory, used, local, split, head0);
  } else {
    more_registers<kFirstRegisters>();
    stage_queries<rank_width>(a, base + L::kQuery, local, t, head0);
    attend_first<rank_width>(a, memory, used, local, split, head0);
  }
}

}  // namespace plumb::cuda::mla
