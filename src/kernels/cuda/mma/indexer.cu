// Index logits on the tensor cores (model.md 3.7): a warp multiplies 32 keys, read once from the cache into its
// fragments, with all heads' queries from shared memory, eight heads at a time, and adds up weight * relu in f32.
//
// Each head's query is divided by its largest magnitude / 448 first. Queries that were rounded to FP8 with that scale
// (IndexQuery with an FP8 key cache) are E4M3 then, so that one bf16 holds them exactly; others are rounded, or split
// into three bf16 that hold every f32.
#include "kernels/cuda/mma/indexer.cuh"
#include "kernels/cuda/mma/mma_kernels.h"

namespace plumb::cuda {
namespace {

using namespace indexer;

constexpr int kWarpKeys = 32;      // a warp's at a time
constexpr int kSteps = kDim / 16;  // of k
constexpr int kHeadTiles = kMaxHeads / 8;

// A row is read in pieces of 16 bytes, neighbouring lanes q beside each other; step s multiplies four elements of a
// lane, and the queries are laid out alike. FP8 decodes to pairs (0, 2) and (1, 3) of the four.
template <IndexKeyFormat format>
constexpr int kStepsOfPiece = format == IndexKeyFormat::Fp8 ? 4 : 2;
// Where four neighbouring elements, the `fours`-th of the row, are multiplied.
template <IndexKeyFormat format>
__device__ int step_of(int fours) {
  constexpr int kEach = kStepsOfPiece<format>;
  return fours / (4 * kEach) * kEach + fours % kEach;
}
template <IndexKeyFormat format>
__device__ int lane_of(int fours) {
  return fours / kStepsOfPiece<format> % 4;
}
template <IndexKeyFormat format>
__device__ int element_of(int half, int i) {
  return format == IndexKeyFormat::Fp8 ? 2 * i + half : 2 * half + i;
}

// One key, decoded: its part of a lane.
template <IndexKeyFormat format>
struct Key {
  uint32_t pairs[kSteps][2];
  float scale = 1;
  uint32_t nan = 0;

  __device__ void load(const KeyPlace<format>& place) {
    const int q = static_cast<int>(threadIdx.x) % 4;
    if constexpr (format == IndexKeyFormat::Fp8) {
      const uint4 codes[2] = {__ldcs(reinterpret_cast<const uint4*>(place.row + 16 * q)),
                              __ldcs(reinterpret_cast<const uint4*>(place.row + 16 * q + 64))};
      scale = __ldg(place.scale);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          pairs[4 * i + j][0] = decode_e4m3<false>(words[j]), pairs[4 * i + j][1] = decode_e4m3<true>(words[j]);
          nan |= (words[j] & 0x7f7f7f7fu) + 0x01010101u;  // as has_nan, which takes the upper bits at the end
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 four = __ldcs(reinterpret_cast<const uint4*>(place.row + 64 * i + 16 * q));
        pairs[2 * i][0] = four.x, pairs[2 * i][1] = four.y, pairs[2 * i + 1][0] = four.z, pairs[2 * i + 1][1] = four.w;
      }
    }
  }
};

template <int parts>
struct Queries {
  uint2 fragments[kHeadTiles][parts][kSteps][32];
  float weights[kMaxHeads];  // with the factors taken out of the query
};

template <IndexKeyFormat format, int parts>
__device__ void prepare(const Scores& p, int64_t r, Queries<parts>& out) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  auto* halves = reinterpret_cast<uint16_t*>(out.fragments);
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
  for (int each = 0; each < kEach; ++each) {
    const int h = warp + each * (kThreads / 32);
    const bool there = h < p.heads;
    const float(&x)[4] = loaded[each];
    float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
    for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
    const bool usual = largest > 1e-30f && largest < 1e30f;
    const float scale = usual ? largest / 448.0f : 1.0f;
    if (lane == 0) out.weights[h] = there ? p.weights.load(r, h) * p.weight_scale * p.softmax_scale * scale : 0.0f;
    const int q = lane_of<format>(lane), step = step_of<format>(lane);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int e = element_of<format>(half, i);
        float rest = (e == 0 ? x[0] : e == 1 ? x[1] : e == 2 ? x[2] : x[3]) / scale;
#pragma unroll
        for (int part = 0; part < parts; ++part) {
          const uint16_t bits = f32_to_bf16(rest);
          const int64_t at = ((static_cast<int64_t>(h / 8) * parts + part) * kSteps + step) * 32 + h % 8 * 4 + q;
          halves[at * 4 + half * 2 + i] = bits;
          rest = fabsf(rest) < INFINITY ? rest - bf16_to_f32(bits) : 0.0f;
        }
      }
  }
}

template <IndexKeyFormat format, int parts>
__global__ void __launch_bounds__(kThreads, 2) score_keys(Scores p, Paging paging, KvView kv) {
  __shared__ Queries<parts> queries;
  const int64_t r = blockIdx.y;
  const int32_t sequence = paging.sequence[r];
  if (sequence < 0) return;
  const int32_t last = paging.positions[r];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t block_keys = int64_t{kThreads / 32} * kWarpKeys * p.rounds, begin = blockIdx.x * block_keys;
  float* out = p.logits + r * p.logits_ld;
  if (begin > last) return fill_beyond(p, out, begin, block_keys);
  prepare<format, parts>(p, r, queries);
  __syncthreads();
  const int g = lane / 4, q = lane % 4;
  const int64_t step = int64_t{kThreads / 32} * kWarpKeys;
  int64_t first = begin + warp * kWarpKeys;
  KeyPlace<format> place[4];  // of keys g, g + 8, g + 16, g + 24
  const auto find = [&](int64_t from) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      place[i] = KeyPlace<format>(kv, paging, p.page_shift, sequence,
                                  static_cast<int32_t>(min(from + 8 * i + g, static_cast<int64_t>(last))));
  };
  find(first);
  for (int round = 0; round < p.rounds && first < p.columns; ++round, first += step) {
    Key<format> key[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) key[i].load(place[i]);
    find(first + step);  // on its way while these are multiplied
    float total[4] = {};
#pragma unroll 1
    for (int n = 0; n < (p.heads + 7) / 8; ++n) {
      float sum[2][4] = {};
#pragma unroll
      for (int part = parts - 1; part >= 0; --part)
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          const uint2 b = queries.fragments[n][part][k][lane];
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            const uint32_t a[4] = {key[2 * m].pairs[k][0], key[2 * m + 1].pairs[k][0], key[2 * m].pairs[k][1],
                                   key[2 * m + 1].pairs[k][1]};
            mma(sum[m], a, b.x, b.y);
          }
        }
      const float even = queries.weights[n * 8 + 2 * q], odd = queries.weights[n * 8 + 2 * q + 1];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = sum[i / 2][2 * (i % 2)], b = sum[i / 2][2 * (i % 2) + 1];
        total[i] = fmaf(even, positive(a), fmaf(odd, positive(b), total[i]));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float value = total[i];
      value += __shfl_xor_sync(~0u, value, 1);
      value += __shfl_xor_sync(~0u, value, 2);
      if constexpr (format == IndexKeyFormat::Fp8) {
        uint32_t nan = key[i].nan;
        nan |= __shfl_xor_sync(~0u, nan, 1);
        nan |= __shfl_xor_sync(~0u, nan, 2);
        value = (nan & 0x80808080u) != 0 ? bits_to_f32(0x7fc00000u) : value * key[i].scale;
      }
      const int64_t j = first + 8 * i + g;
      if (q == 0 && j < p.columns) out[j] = j > last ? -INFINITY : value;
    }
  }
}

template <int parts>
void indexer_logits(const IndexerLogitsArgs& a, Stream& s) {
  Scores p;
  const dim3 grid = scores_of(a, int64_t{kThreads / 32} * kWarpKeys, p);
  if (a.kv.geometry.index_key == IndexKeyFormat::Fp8)
    score_keys<IndexKeyFormat::Fp8, parts><<<grid, kThreads, 0, handle(s)>>>(p, a.paging, a.kv);
  else
    score_keys<IndexKeyFormat::Bf16, parts><<<grid, kThreads, 0, handle(s)>>>(p, a.paging, a.kv);
}

template <int parts>
Contract contract() {
  Contract c = index_contract(parts == 1 ? "indexer_logits.bf16.mma.cuda" : "indexer_logits.mma.cuda");
  c.reads = {parts == 1 ? kBf16 : kF32};
  // With bf16 keys nothing has rounded the queries yet, and a rounding would change selections.
  c.index_key = parts == 1 ? std::vector{IndexKeyFormat::Fp8} : std::vector{IndexKeyFormat::Bf16, IndexKeyFormat::Fp8};
  c.arch = Isa::CudaPortable;
  c.sum_order = parts == 1 ? "mma.bf16" : "mma";
  c.error_bound = {.c = parts == 1 ? 1.0 : 16.0, .unit = parts == 1 ? DType::BF16 : DType::F32, .floor = 0x1p-110};
  c.preference = parts == 1 ? 30 : 20;  // docs/performance.md
  return c;
}

}  // namespace

void add_indexer_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<IndexerLogitsArgs, indexer_logits<1>>(contract<1>()));
  out.push_back(make_kernel<IndexerLogitsArgs, indexer_logits<3>>(contract<3>()));
}

}  // namespace plumb::cuda
