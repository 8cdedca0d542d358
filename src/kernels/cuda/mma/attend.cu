// Sparse MLA in absorbed form on the tensor cores (model.md 3.6), in three kernels:
//   absorb_queries  q_lat[t, h] = W_UK[h]^T q_nope[t, h], bf16
//   attend_split    one block a row, up to 64 heads and a part of the selected positions. Tiles of 64 latent rows are
//                   gathered into shared memory as bf16 (the next one is on its way while this one is multiplied);
//                   S^T = K Q^T, an online softmax in base 2, and O^T += V^T P^T, where V is the first `rank` of K
//   project_values  joins the parts and multiplies by W_UV[h]
// Heads are the n of every product, so that eight heads of a tensor-parallel rank waste nothing.
#include <algorithm>

#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/mma/fragments.cuh"
#include "kernels/cuda/mma/mma_kernels.h"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kKeys = 64;       // of a tile
constexpr int kRopeWidth = 64;  // columns kept for the rope part
constexpr int kTokens = 64;     // at most, of one block of absorb_queries and project_values
constexpr int kColumns = 128;   // of the latent (absorb_queries) or of the values (project_values) in one block
constexpr int kScoreStride = kKeys + 4;        // floats
constexpr int kProbStride = 2 * kScoreStride;  // bf16: a head's probabilities take the place of its scores
constexpr int kMaxTopk = 4096;                 // rows of one split that shared memory can list
constexpr int kRowChunk = 128;                 // rows of the step at a time: bounds the workspace
constexpr int kBlocks = 132;                   // aimed at: one for each multiprocessor of an H200
constexpr int kFixedSplits = 4;

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
  uint16_t* q_lat = nullptr;            // [rows, heads, rank]
  float* part = nullptr;                // [rows, splits, heads, rank], normalised
  float* log_sum = nullptr;             // [rows, splits, heads], base 2
  Act out{};
  bool round = false;
  uint32_t zero = 0;  // unknown to the compiler
};

// Byte address of 16-byte chunk `chunk` of row `row`; eight rows of one chunk lie in eight different groups of banks.
template <int width>
__device__ uint32_t at_chunk(uint32_t base, int row, int chunk) {
  return base + static_cast<uint32_t>((row * (width / 8) + (chunk ^ (row & 7))) * 16);
}

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

// o_lat of one row and head: the splits' parts by their shares of the softmax's sum. A warp; a lane has two of each 64
// elements.
__device__ void join(const Attend& a, int64_t local, int h, uint16_t* to) {
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

template <class Function>
void allow(Function* kernel, int bytes) {
  if (bytes > 48 * 1024) {
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    PLUMB_CHECK(status == cudaSuccess, cudaGetErrorString(status));
  }
}

template <int rank_width, int head_tiles, bool fp8>
void launch_split(const Attend& a, const MlaAttendArgs& args, cudaStream_t stream) {
  using L = SplitLayout<rank_width, head_tiles, fp8>;
  allow(attend_split<rank_width, head_tiles, fp8>, L::kBytes);
  const dim3 grid(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.splits),
                  static_cast<unsigned>((a.heads + L::kHeads - 1) / L::kHeads));
  attend_split<rank_width, head_tiles, fp8><<<grid, kThreads, L::kBytes, stream>>>(a, args.paging, args.kv);
}

template <bool fp8>
void launch_split(const Attend& a, const MlaAttendArgs& args, cudaStream_t stream) {
  if (a.rank == 128) return launch_split<128, 1, fp8>(a, args, stream);
  if (a.heads <= 8) return launch_split<512, 1, fp8>(a, args, stream);
  if (a.heads <= 16) return launch_split<512, 2, fp8>(a, args, stream);
  if (a.heads <= 32) return launch_split<512, 4, fp8>(a, args, stream);
  launch_split<512, 8, fp8>(a, args, stream);
}

int groups_of(int64_t heads, int64_t rank) {
  return static_cast<int>(rank == 128 ? (heads + 7) / 8 : (heads + 63) / 64);
}
int tiles_of(int64_t topk) { return static_cast<int>((topk + kKeys - 1) / kKeys); }
// Parts of the selected positions: enough blocks for every multiprocessor, or the same for every batch.
int splits_of(int64_t rows, int64_t heads, int64_t rank, int64_t topk, bool fixed) {
  const int64_t wanted = fixed ? kFixedSplits : kBlocks / std::max<int64_t>(1, rows * groups_of(heads, rank));
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, tiles_of(topk)));
}

int64_t query_bytes(int64_t heads, int64_t rank) { return aligned(kRowChunk * heads * rank * 2); }
int64_t rows_times_splits(const Call& c, bool fixed) {
  int64_t most = 1;
  for (int64_t rows = 1; rows <= kRowChunk; ++rows)
    most = std::max(most, rows * splits_of(rows, c.heads, c.k, c.topk, fixed));
  return most;
}
template <bool fixed>
size_t workspace_bytes(const Call& c) {
  const int64_t parts = rows_times_splits(c, fixed) * c.heads;
  return static_cast<size_t>(query_bytes(c.heads, c.k) + aligned(parts * c.k * 4) + aligned(parts * 4));
}

template <bool fixed>
void mla_attend(const MlaAttendArgs& args, Stream& s) {
  const KvGeometry& g = args.kv.geometry;
  Attend a{.q = act(args.q),
           .kv_b = mat(*args.kv_b),
           .heads = args.heads,
           .nope = args.nope_dim,
           .rope = args.rope_dim,
           .v = args.v_dim,
           .rank = g.kv_lora_rank,
           .scale = args.softmax_scale * 1.4426950408889634f,
           .topk = args.topk_indices.i32(),
           .topk_ld = args.topk_indices.ld,
           .topk_count = static_cast<int>(args.topk_indices.dim(1)),
           .out = act(args.out),
           .round = args.numerics.round_bf16};
  const Call call{.k = a.rank, .heads = a.heads, .topk = a.topk_count};
  PLUMB_CHECK(s.workspace_bytes >= workspace_bytes<fixed>(call), "workspace too small");
  a.q_lat = reinterpret_cast<uint16_t*>(s.workspace);
  a.part = reinterpret_cast<float*>(s.workspace + query_bytes(a.heads, a.rank));
  a.log_sum = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(a.part) +
                                       aligned(rows_times_splits(call, fixed) * a.heads * a.rank * 4));
  for (; a.first_row < args.paging.rows; a.first_row += kRowChunk) {
    a.rows = static_cast<int>(std::min<int64_t>(kRowChunk, args.paging.rows - a.first_row));
    a.splits = splits_of(a.rows, a.heads, a.rank, a.topk_count, fixed);
    a.tiles = (tiles_of(a.topk_count) + a.splits - 1) / a.splits;
    // Few heads make few blocks: fewer rows in each, then, down to what one product of fragments takes.
    a.tokens = kTokens;
    while (a.tokens > 8 && (a.rows + a.tokens - 1) / a.tokens * a.heads * 2 < kBlocks) a.tokens /= 2;
    const int padded = (a.nope + 15) / 16 * 16;
    const int absorb_bytes = (padded * (kColumns + 8) + a.tokens * (padded + 8)) * 2;
    const int project_bytes = a.tokens * (a.rank + 8) * 2;
    const auto heads = static_cast<unsigned>(a.heads);
    const auto tokens = static_cast<unsigned>((a.rows + a.tokens - 1) / a.tokens);
    const auto with_kind = [&](auto absorb, auto project) {
      allow(absorb, absorb_bytes);
      allow(project, project_bytes);
      absorb<<<dim3(heads, static_cast<unsigned>(a.rank / kColumns), tokens), kThreads,
               static_cast<size_t>(absorb_bytes), handle(s)>>>(a);
      if (g.latent == KvFormat::Fp8Tile128)
        launch_split<true>(a, args, handle(s));
      else
        launch_split<false>(a, args, handle(s));
      project<<<dim3(heads, static_cast<unsigned>((a.v + kColumns - 1) / kColumns), tokens), kThreads,
                static_cast<size_t>(project_bytes), handle(s)>>>(a, args.paging.sequence);
    };
    const WeightKind kind = kind_of(a.kv_b);
    if (kind == WeightKind::Bf16)
      with_kind(absorb_queries<WeightKind::Bf16>, project_values<WeightKind::Bf16>);
    else if (kind == WeightKind::Fp8Block)
      with_kind(absorb_queries<WeightKind::Fp8Block>, project_values<WeightKind::Fp8Block>);
    else
      with_kind(absorb_queries<WeightKind::Any>, project_values<WeightKind::Any>);
  }
}

// Roundings to bf16: q, W_UK, q_lat and the latent row in a score; probability, latent row, o_lat and W_UV in the sum.
template <bool fixed>
Contract contract() {
  Contract c;
  c.name = fixed ? "mla_attend.split4.mma.cuda" : "mla_attend.split.mma.cuda";
  c.op = Op::MlaAttend;
  c.weight = {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4};
  c.weight_layout = Layout::CudaRowMajor;
  c.reads = {kBf16};
  c.kv = {KvFormat::Bf16, KvFormat::Fp8Tile128};
  c.arch = Isa::Sm90a;  // up to 220 KB of shared memory a block
  c.limits = {.k_multiple = 128, .k_max = 512, .topk_max = kMaxTopk, .rope_max = kRopeWidth};
  c.round_bf16 = c.norm_two_roundings = c.index_hadamard = true;
  c.deterministic = true;
  c.batch_invariant = fixed;
  c.sum_order = fixed ? "split4.mma" : "split.mma";
  c.error_bound = {.c = 8, .unit = DType::BF16, .floor = 0};
  c.preference = fixed ? 20 : 30;  // docs/performance.md
  c.workspace = workspace_bytes<fixed>;
  return c;
}

}  // namespace

void add_attend_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<MlaAttendArgs, mla_attend<false>>(contract<false>()));
  out.push_back(make_kernel<MlaAttendArgs, mla_attend<true>>(contract<true>()));
}

}  // namespace plumb::cuda
