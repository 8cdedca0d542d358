// Attention over a part of the selected positions, up to 64 heads and one row a block.
#pragma once

#include "kernels/cuda/mma/attend.cuh"

namespace plumb::cuda::mla {

// Byte address of 16-byte chunk `chunk` of row `row`; eight rows of one chunk lie in eight different groups of banks.
template <int width>
__device__ uint32_t at_chunk(uint32_t base, int row, int chunk) {
  return base + static_cast<uint32_t>((row * (width / 8) + (chunk ^ (row & 7))) * 16);
}

template <int rank_width, int head_tiles, bool fp8>
struct SplitLayout {  // of attend_split's shared memory, in bytes
  static constexpr int kWidth = rank_width + kRopeWidth;
  static constexpr int kHeads = 8 * head_tiles;
  static constexpr int kHalves = head_tiles == 1 ? 2 : 1;  // of k in S^T: eight warps have eight tiles of keys x k
  static constexpr int kQuery = 0;
  static constexpr int kLatent = kQuery + kHeads * kWidth * 2;
  static constexpr int kLatentBytes = kKeys * kWidth * 2;
  static constexpr bool kTwo = !fp8 && head_tiles < 8;  // tiles of bf16; with 64 heads there is room for one only
  static constexpr int kRaw = kLatent + (kTwo ? 2 : 1) * kLatentBytes;
  static constexpr int kRawRow = rank_width + rank_width / 128 * 4 + kRopeWidth * 2;
  static constexpr int kRawStride = (kRawRow + 15) / 16 * 16;
  static constexpr int kStages = head_tiles < 8 ? 2 : 1;  // of raw rows
  static constexpr int kScores = kRaw + (fp8 ? kStages * kKeys * kRawStride : 0);
  static constexpr int kScoreBytes = kHalves * kHeads * kScoreStride * 4;
  static constexpr int kFactors = kScores + kScoreBytes;
  static constexpr int kRows = kFactors + 2 * kHeads * 4;
  static constexpr int kMask = kRows + kMaxTopk * 4;
  static constexpr int kBytes = kMask + kMaxTopk / kKeys / 8;
};

template <int rank_width, int head_tiles, bool fp8>
struct Tiles {
  using L = SplitLayout<rank_width, head_tiles, fp8>;
  const Attend& a;
  const Paging& paging;
  const KvView& kv;
  unsigned char* memory;
  int64_t t;
  int32_t sequence;

  // Of the split's positions: rows of the cache, -1 where there is none.
  __device__ const int32_t* rows(int tile) const {
    return reinterpret_cast<const int32_t*>(memory + L::kRows) + tile * kKeys;
  }
  __device__ uint32_t latent(int buffer) const {
    return shared_address(memory) + L::kLatent + (L::kTwo ? buffer * L::kLatentBytes : 0);
  }
  __device__ int raw(int buffer) const { return L::kRaw + (L::kStages == 2 ? buffer * kKeys * L::kRawStride : 0); }

  // Where all of the split's rows lie, and which of its tiles have any.
  __device__ void find_rows(int first) const {
    auto* mask = reinterpret_cast<uint32_t*>(memory + L::kMask);
    auto* to = reinterpret_cast<int32_t*>(memory + L::kRows);
    const int32_t last = paging.positions[t];
    for (int i = static_cast<int>(threadIdx.x); i < kMaxTopk / kKeys / 32; i += kThreads) mask[i] = 0;
    __syncthreads();
    stage(
        a.tiles * kKeys,
        [&](int i) {
          const int at = first * kKeys + i;
          const int32_t index = at < a.topk_count ? a.topk[t * a.topk_ld + at] : -1;
          return index >= 0 && index <= last ? index : -1;
        },
        [&](int i, int32_t index) { to[i] = index; });
    stage(
        a.tiles * kKeys,
        [&](int i) {
          const int32_t index = to[i];
          return index < 0 ? -1 : page_at(paging, sequence, index) * paging.page_tokens + index % paging.page_tokens;
        },
        [&](int i, int32_t row) {
          to[i] = row;
          if (row >= 0) atomicOr(&mask[i / kKeys / 32], 1u << (i / kKeys % 32));
        });
    __syncthreads();
  }
  // The first tile with a row from `tile` on, counted from the split's first; a.tiles or more if there is none.
  __device__ int next(int tile) const {
    const auto* mask = reinterpret_cast<const uint32_t*>(memory + L::kMask);
    while (tile < a.tiles && (mask[tile / 32] >> (tile % 32) & 1u) == 0) ++tile;
    return tile;
  }
  __device__ void fetch(int tile, int buffer) const {
    const auto row_bytes = static_cast<int>(latent_row_bytes_of(kv.geometry));
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const bool wide = row_bytes % 16 == 0;
    const int piece = wide ? 16 : 4;
    constexpr int kEach = kKeys / (kThreads / 32);
    int32_t row[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) row[i] = rows(tile)[warp * kEach + i];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int key = warp * kEach + i;
      const auto* from = reinterpret_cast<const uint8_t*>(kv.latent) + static_cast<int64_t>(max(row[i], 0)) * row_bytes;
      for (int at = lane * piece; at < row_bytes; at += 32 * piece) {
        uint32_t to;
        if constexpr (fp8) {
          to = shared_address(memory) + static_cast<uint32_t>(raw(buffer) + key * L::kRawStride + at);
        } else {
          const int element = at / 2 < a.rank ? at / 2 : at / 2 - a.rank + rank_width;
          to = at_chunk<L::kWidth>(latent(buffer), key, element / 8) + static_cast<uint32_t>(element % 8 * 2);
        }
        if (wide)
          copy_async_16(to, from + at, row[i] >= 0);
        else
          copy_async_4(to, from + at, row[i] >= 0);
      }
    }
  }
  // Raw FP8 rows to bf16: code times scale, rounded once.
  __device__ void decode(int buffer) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int scale_at = a.rank, rope_at = a.rank + (a.rank + kLatentTile - 1) / kLatentTile * 4;
    constexpr int kEach = kKeys / (kThreads / 32), kBatch = 4;  // keys of a warp; of them at once
    const unsigned char* first = memory + raw(buffer) + warp * kEach * L::kRawStride;
#pragma unroll
    for (int begin = 0; begin < kEach; begin += kBatch) {
      for (int chunk = lane; chunk < a.rank / 8; chunk += 32) {
        uint2 codes[kBatch];
        float scale[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const unsigned char* row = first + (begin + i) * L::kRawStride;
          codes[i] = *reinterpret_cast<const uint2*>(row + chunk * 8);
          scale[i] = *reinterpret_cast<const float*>(row + scale_at + chunk * 8 / kLatentTile * 4);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
          store_shared(at_chunk<L::kWidth>(latent(0), warp * kEach + begin + i, chunk),
                       {scaled_pair(codes[i].x, scale[i], false), scaled_pair(codes[i].x, scale[i], true),
                        scaled_pair(codes[i].y, scale[i], false), scaled_pair(codes[i].y, scale[i], true)});
      }
      for (int word = lane; word < a.rope / 2; word += 32) {
        uint32_t value[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
          value[i] = *reinterpret_cast<const uint32_t*>(first + (begin + i) * L::kRawStride + rope_at + word * 4);
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
          store_shared(at_chunk<L::kWidth>(latent(0), warp * kEach + begin + i, rank_width / 8 + word / 4) +
                           static_cast<uint32_t>(word % 4 * 4),
                       value[i]);
      }
    }
  }
};

// S^T of one tile into shared memory, [head][key] (twice when the warps share out k).
template <class L, int head_tiles>
__device__ void score(unsigned char* memory, uint32_t latent) {
  constexpr int kSteps = L::kWidth / 16, kMine = head_tiles == 1 ? 1 : head_tiles / 2;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int key0 = warp % 4 * 16, half = warp / 4;
  const int first_tile = head_tiles == 1 ? 0 : half * kMine;
  const int begin = L::kHalves == 2 ? half * (kSteps / 2) : 0, end = L::kHalves == 2 ? begin + kSteps / 2 : kSteps;
  const uint32_t query = shared_address(memory) + L::kQuery;
  float sum[kMine][4] = {}, other[4] = {};  // two chains of products where there would be one
#pragma unroll 6
  for (int step = begin; step < end; ++step) {
    uint32_t k[4];
    load_matrices(k, at_chunk<L::kWidth>(latent, key0 + lane % 16, step * 2 + lane / 16));
    if constexpr (kMine == 1) {
      uint32_t q[2];
      load_matrices(q, at_chunk<L::kWidth>(query, first_tile * 8 + lane % 8, step * 2 + lane / 8 % 2));
      mma(step % 2 == 0 ? sum[0] : other, k, q[0], q[1]);
    } else {
#pragma unroll
      for (int n = 0; n < kMine; n += 2) {
        uint32_t q[4];
        load_matrices(q,
                      at_chunk<L::kWidth>(query, (first_tile + n + lane / 16) * 8 + lane % 8, step * 2 + lane / 8 % 2));
        mma(sum[n], k, q[0], q[1]);
        mma(sum[n + 1], k, q[2], q[3]);
      }
    }
  }
  auto* scores = reinterpret_cast<float*>(memory + L::kScores);
  if (L::kHalves == 2) scores += half * L::kHeads * kScoreStride;
#pragma unroll
  for (int n = 0; n < kMine; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = (first_tile + n) * 8 + lane % 4 * 2 + i % 2;
      scores[head * kScoreStride + key0 + lane / 4 + i / 2 * 8] = kMine == 1 ? sum[n][i] + other[i] : sum[n][i];
    }
}

// What 256 / heads threads know of their head.
struct Softmax {
  float largest = -INFINITY, total = 0;
};

// Probabilities of one tile, relative to the largest score so far, and the factor for what was summed before.
template <class L>
__device__ void normalise(unsigned char* memory, const int32_t* rows, float scale, Softmax& state) {
  constexpr int kShare = kThreads / L::kHeads;  // threads of a head
  const int head = static_cast<int>(threadIdx.x) / kShare, part = static_cast<int>(threadIdx.x) % kShare;
  const auto* scores = reinterpret_cast<const float*>(memory + L::kScores) + head * kScoreStride;
  auto* probs = reinterpret_cast<uint16_t*>(memory + L::kScores) + head * kProbStride;
  float s[kKeys / kShare];
  float largest = state.largest;
#pragma unroll
  for (int i = 0; i < kKeys / kShare; ++i) {
    const int key = part + kShare * i;
    float value = scores[key];
    if (L::kHalves == 2) value += scores[L::kHeads * kScoreStride + key];
    s[i] = rows[key] < 0 ? -INFINITY : value * scale;
    largest = fmaxf(largest, s[i]);
  }
#pragma unroll
  for (int offset = kShare / 2; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
  __syncwarp();  // the head's scores have been read
  float total = 0;
#pragma unroll
  for (int i = 0; i < kKeys / kShare; ++i) {
    const uint16_t p = s[i] == -INFINITY ? uint16_t{0} : f32_to_bf16(exp2f(s[i] - largest));
    probs[part + kShare * i] = p;
    total += bf16_to_f32(p);
  }
#pragma unroll
  for (int offset = kShare / 2; offset > 0; offset /= 2) total += __shfl_xor_sync(~0u, total, offset);
  const float factor = state.largest == -INFINITY ? 0.0f : exp2f(state.largest - largest);
  state.total = state.total * factor + total;
  state.largest = largest;
  if (part == 0) reinterpret_cast<float*>(memory + L::kFactors)[head] = factor;
}

template <int rank_width, int head_tiles, bool fp8>
__global__ void __launch_bounds__(kThreads, 1) attend_split(Attend a, Paging paging, KvView kv) {
  extern __shared__ __align__(128) unsigned char shared[];
  using L = SplitLayout<rank_width, head_tiles, fp8>;
  constexpr int kMine = rank_width / 128;  // strips of 16 latent elements of a warp
  const int64_t local = blockIdx.x, t = a.first_row + local;
  const int split = static_cast<int>(blockIdx.y), head0 = static_cast<int>(blockIdx.z) * L::kHeads;
  const int32_t sequence = paging.sequence[t];
  if (sequence < 0) return;
  const Tiles<rank_width, head_tiles, fp8> tiles{a, paging, kv, shared, t, sequence};
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;

  // Columns beyond the rank and the rope part stay zero.
  for (int i = tid; i < (L::kRaw - L::kLatent) / 16; i += kThreads)
    *reinterpret_cast<uint4*>(shared + L::kLatent + i * 16) = uint4{0, 0, 0, 0};
  const uint32_t query = shared_address(shared) + L::kQuery;
  stage(
      L::kHeads * rank_width / 8,
      [&](int i) {
        const int head = head0 + i / (rank_width / 8), column = i % (rank_width / 8) * 8;
        return head < a.heads && column < a.rank
                   ? *reinterpret_cast<const uint4*>(a.q_lat + (local * a.heads + head) * a.rank + column)
                   : uint4{0, 0, 0, 0};
      },
      [&](int i, const uint4& eight) {
        store_shared(at_chunk<L::kWidth>(query, i / (rank_width / 8), i % (rank_width / 8)), eight);
      });
  stage(
      L::kHeads * kRopeWidth / 2,
      [&](int i) {
        const int head = head0 + i / (kRopeWidth / 2), column = i % (kRopeWidth / 2) * 2;
        const int64_t at = static_cast<int64_t>(head) * (a.nope + a.rope) + a.nope + column;
        return head < a.heads && column < a.rope ? pack_bf16(a.q.load(t, at), a.q.load(t, at + 1)) : 0u;
      },
      [&](int i, uint32_t pair) {
        const int column = rank_width + i % (kRopeWidth / 2) * 2;
        store_shared(
            at_chunk<L::kWidth>(query, i / (kRopeWidth / 2), column / 8) + static_cast<uint32_t>(column % 8 * 2), pair);
      });
  const int first = split * a.tiles;
  tiles.find_rows(first);

  Softmax softmax;
  float sum[kMine][head_tiles][4] = {};
  // Two tiles are on their way where there is room for their rows, else one.
  int tile = tiles.next(0), next = tiles.next(tile + 1), buffer = 0;
  constexpr bool kDeep = fp8 && L::kStages == 2;
  if (tile < a.tiles) tiles.fetch(tile, 0);
  commit_copies();
  if constexpr (kDeep) {
    if (next < a.tiles) tiles.fetch(next, 1);
    commit_copies();
  }
  while (tile < a.tiles) {
    const int after = tiles.next(next + 1);
    if constexpr (kDeep)
      wait_for_copies_but_one();
    else
      wait_for_copies();
    __syncthreads();
    if constexpr (fp8) {
      tiles.decode(buffer);
      __syncthreads();
    }
    if constexpr (kDeep) {
      if (after < a.tiles) tiles.fetch(after, buffer);
      commit_copies();
    } else if (fp8 || L::kTwo) {
      if (next < a.tiles) tiles.fetch(next, buffer ^ 1);
      commit_copies();
    }
    const uint32_t latent = tiles.latent(buffer);
    score<L, head_tiles>(shared, latent);
    __syncthreads();
    normalise<L>(shared, tiles.rows(tile), a.scale, softmax);
    __syncthreads();
    const auto* factors = reinterpret_cast<const float*>(shared + L::kFactors);
#pragma unroll
    for (int n = 0; n < head_tiles; ++n) {
      const float even = factors[n * 8 + lane % 4 * 2], odd = factors[n * 8 + lane % 4 * 2 + 1];
#pragma unroll
      for (int m = 0; m < kMine; ++m)
        sum[m][n][0] *= even, sum[m][n][1] *= odd, sum[m][n][2] *= even, sum[m][n][3] *= odd;
    }
    const uint32_t probs = shared_address(shared) + L::kScores;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t p[head_tiles][2];
#pragma unroll
      for (int n = 0; n < head_tiles; ++n)
        load_matrices(
            p[n], probs + static_cast<uint32_t>((n * 8 + lane % 8) * kProbStride + step * 16 + lane / 8 % 2 * 8) * 2);
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        uint32_t v[4];
        const int chunk = (warp * kMine + m) * 2 + lane / 8 % 2;
        load_transposed(v, at_chunk<L::kWidth>(latent, step * 16 + lane / 16 * 8 + lane % 8, chunk));
#pragma unroll
        for (int n = 0; n < head_tiles; ++n) mma(sum[m][n], v, p[n][0], p[n][1]);
      }
    }
    if constexpr (!fp8 && !L::kTwo) {
      __syncthreads();
      if (next < a.tiles) tiles.fetch(next, buffer ^ 1);
      commit_copies();
    }
    tile = next;
    next = after;
    buffer ^= 1;
  }

  constexpr int kShare = kThreads / L::kHeads;
  auto* inverse = reinterpret_cast<float*>(shared + L::kFactors) + L::kHeads;
  if (tid % kShare == 0) {
    const int head = head0 + tid / kShare;
    inverse[tid / kShare] = softmax.total == 0 ? 0.0f : 1.0f / softmax.total;
    if (head < a.heads)
      a.log_sum[(local * a.splits + split) * a.heads + head] =
          softmax.total == 0 ? -INFINITY : softmax.largest + log2f(softmax.total);
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < head_tiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = n * 8 + lane % 4 * 2 + i % 2;
      if (head0 + row >= a.heads) continue;
      float* out = a.part + ((local * a.splits + split) * a.heads + head0 + row) * a.rank;
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        const int c = (warp * kMine + m) * 16 + lane / 4 + i / 2 * 8;
        if (c < a.rank) out[c] = sum[m][n][i] * inverse[row];
      }
    }
}

}  // namespace plumb::cuda::mla
