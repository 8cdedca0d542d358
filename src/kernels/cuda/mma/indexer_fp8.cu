// Index logits of FP8 keys as they are (model.md 3.7): four warps multiply 64 keys, read once from the cache into their
// fragments, with all heads' queries in shared memory, and add up weight * relu in f32.
//
// Each head's query is divided by its largest magnitude / 448 first and taken as a sum of E4M3, each 16 times finer
// than the one before, as many as the row needs. Queries that were rounded to FP8 with that scale (IndexQuery with an
// FP8 key cache) are one exactly.
#include "kernels/cuda/mma/indexer.cuh"
#include "kernels/cuda/mma/mma_kernels.h"
#include "kernels/cuda/mma/wgmma.cuh"

namespace plumb::cuda {
namespace {

using namespace indexer;

constexpr int kGroups = kThreads / kGroupThreads;
constexpr int kTileKeys = 64;  // of a group
constexpr int kRound = kTileKeys * kGroups;
constexpr int kSteps = kDim / 32;  // of k
constexpr int kAhead = 3;          // tiles on their way
using Place = KeyPlace<IndexKeyFormat::Fp8>;

// A row is read in pieces of 16 bytes, lane q the q-th of each half; step s multiplies eight elements of a lane. Where
// in a row of queries element e, a multiple of four, meets them.
__device__ inline int place_of(int e) { return (e / 64 * 2 + e % 16 / 8) * 32 + e % 8 / 4 * 16 + e % 64 / 16 * 4; }

constexpr int kMaxParts = 6;  // of a query: 2^-30 of a head's largest element is left
struct Queries {
  alignas(kSwizzleBytes) uint8_t codes[kMaxParts][kMaxHeads * kDim];
  float weights[kMaxHeads];  // with the factors taken out of the query
  int parts;
};

// Two values to E4M3 codes, NaN for what is not finite; 16 times what is left of them.
__device__ inline uint32_t code_pair(float& a, float& b) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
  const bool good_a = fabsf(a) < INFINITY, good_b = fabsf(b) < INFINITY;
  float low, high;
  unpack_halves(halves_of(codes), low, high);
  a = good_a ? (a - low) * 16.0f : 0.0f, b = good_b ? (b - high) * 16.0f : 0.0f;
  return codes | (good_a ? 0u : 0x7fu) | (good_b ? 0u : 0x7f00u);
}

__device__ void prepare(const Scores& p, int64_t r, Queries& out) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kEach = kMaxHeads / (kThreads / 32);  // heads of a warp, all loaded before the first is used
  float loaded[kEach][4];
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t h = warp + i * (kThreads / 32);
      loaded[i][e] = h < p.heads ? p.q.load(r, h * kDim + lane * 4 + e) : 0.0f;
    }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int h = warp + i * (kThreads / 32);
    float(&x)[4] = loaded[i];
    float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
    for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
    const float scale = largest > 1e-34f && largest < INFINITY ? largest / 448.0f : 1.0f;
    if (lane == 0)
      out.weights[h] = h < p.heads ? p.weights.load(r, h) * p.weight_scale * p.softmax_scale * scale : 0.0f;
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] /= scale;
    const int place = place_of(lane * 4);
    float allowed[4];  // of an element may be left: half of what a bf16 leaves
#pragma unroll
    for (int e = 0; e < 4; ++e) allowed[e] = fabsf(x[e]) * 0x1p-9f;
    bool left = true;
#pragma unroll 1
    for (int part = 0; part < kMaxParts && left; ++part) {
      const uint32_t low = code_pair(x[0], x[1]), high = code_pair(x[2], x[3]);
      store_shared(swizzled(shared_address(out.codes[part]), h, place / 16) + static_cast<uint32_t>(place % 16),
                   low | high << 16);
      left = false;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        allowed[e] *= 16.0f;
        left = left || fabsf(x[e]) > allowed[e];
      }
      left = __any_sync(~0u, left);
      if (lane == 0) atomicMax(&out.parts, part + 1);
    }
  }
}

// What a lane holds of a tile's keys: rows g and g + 8 of its warp's 16.
struct Keys {
  uint4 low[2], high[2];
  float scale_low, scale_high;

  __device__ void load(const Place& l, const Place& h) {
    const int at = static_cast<int>(threadIdx.x) % 4 * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      low[i] = __ldcs(reinterpret_cast<const uint4*>(l.row + at + 64 * i));
      high[i] = __ldcs(reinterpret_cast<const uint4*>(h.row + at + 64 * i));
    }
    scale_low = __ldg(l.scale), scale_high = __ldg(h.scale);
  }
};

__global__ void __launch_bounds__(kThreads, 2) score_fp8_keys(Scores p, Paging paging, KvView kv) {
  __shared__ Queries queries;
  const int64_t r = blockIdx.y;
  const int32_t sequence = paging.sequence[r];
  if (sequence < 0) return;
  const int32_t last = paging.positions[r];
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t block_keys = int64_t{kRound} * p.rounds, begin = blockIdx.x * block_keys;
  float* out = p.logits + r * p.logits_ld;
  if (begin > last) return fill_beyond(p, out, begin, block_keys);
  // This lane's two keys of the group's tile `round`.
  const int64_t mine = begin + group * kTileKeys + static_cast<int>(threadIdx.x) % kGroupThreads / 32 * 16 + lane / 4;
  const auto key_of = [&](int round, int half) { return mine + int64_t{kRound} * round + 8 * half; };
  const auto place = [&](int round, int half) {
    return Place(kv, paging, p.page_shift, sequence,
                 static_cast<int32_t>(min(key_of(round, half), static_cast<int64_t>(last))));
  };
  Keys keys[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) keys[i].load(place(i, 0), place(i, 1));
  Place next[2] = {place(kAhead, 0), place(kAhead, 1)};
  if (threadIdx.x == 0) queries.parts = 1;
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof queries.codes) / 16; i += kThreads)
    store_shared(shared_address(queries.codes) + i * 16, {0, 0, 0, 0});
  __syncthreads();
  prepare(p, r, queries);
  publish_shared();
  __syncthreads();
  const uint64_t codes = rows_of(shared_address(queries.codes));
  const int parts = queries.parts;
  float weights[kMaxHeads / 4];  // of columns 8 j + 2 q and 8 j + 2 q + 1
#pragma unroll
  for (int j = 0; j < kMaxHeads / 4; ++j) weights[j] = queries.weights[j / 2 * 8 + lane % 4 * 2 + j % 2];
  for (int first = 0; first < p.rounds; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int round = first + i;
      if (round >= p.rounds) break;
      Keys& k = keys[i];
      const uint32_t fragments[kSteps][4] = {{k.low[0].x, k.high[0].x, k.low[0].y, k.high[0].y},
                                             {k.low[0].z, k.high[0].z, k.low[0].w, k.high[0].w},
                                             {k.low[1].x, k.high[1].x, k.low[1].y, k.high[1].y},
                                             {k.low[1].z, k.high[1].z, k.low[1].w, k.high[1].w}};
      float sum[kMaxHeads / 2];
      for (int part = parts - 1; part >= 0; --part) {  // the finest first
        if (part < parts - 1) {
          wait_for_products<0>();
          pin(sum);
#pragma unroll
          for (float& x : sum) x *= 0.0625f;
        }
        begin_products();
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
          multiply_e4m3(sum, fragments[step], codes + static_cast<uint64_t>(part * (kMaxHeads * kDim / 16) + step * 2),
                        part < parts - 1 || step > 0);
        commit_products();
      }
      const float scales[2] = {k.scale_low, k.scale_high};
      wait_for_products<0>();
      pin(sum);
      if (round + kAhead < p.rounds) {
        k.load(next[0], next[1]);
        next[0] = place(round + kAhead + 1, 0), next[1] = place(round + kAhead + 1, 1);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float even = 0, odd = 0;
#pragma unroll
        for (int j = 0; j < kMaxHeads / 8; ++j) {
          even = fmaf(weights[2 * j], positive(sum[4 * j + 2 * half]), even);
          odd = fmaf(weights[2 * j + 1], positive(sum[4 * j + 2 * half + 1]), odd);
        }
        float value = even + odd;
        value += __shfl_xor_sync(~0u, value, 1);
        value += __shfl_xor_sync(~0u, value, 2);
        const int64_t j = key_of(round, half);
        if (lane % 4 == half && j < p.columns) out[j] = j > last ? -INFINITY : value * scales[half];
      }
    }
  }
}

void indexer_logits_fp8(const IndexerLogitsArgs& a, Stream& s) {
  Scores p;
  const dim3 grid = scores_of(a, kRound, p);
  score_fp8_keys<<<grid, kThreads, 0, handle(s)>>>(p, a.paging, a.kv);
}

}  // namespace

void add_fp8_indexer_kernels(std::vector<Kernel>& out) {
  Contract c = index_contract("indexer_logits.fp8.mma.cuda");
  c.reads = {kBf16};
  c.index_key = {IndexKeyFormat::Fp8};
  c.arch = Isa::Sm90a;
  c.sum_order = "wgmma.e4m3";
  // Products of 128 are added in the tensor core's own accumulator of 14 bits.
  c.promote_every = kDim;
  c.error_bound = {.c = 1, .unit = DType::BF16, .floor = 0x1p-110};
  c.preference = 40;  // docs/performance.md
  out.push_back(make_kernel<IndexerLogitsArgs, indexer_logits_fp8>(std::move(c)));
}

}  // namespace plumb::cuda
