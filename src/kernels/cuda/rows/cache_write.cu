// Rotation of queries, and what writes the cache: a warp or two a row or head, tile scales by a warp's tree instead of
// by every thread alone. Layouts: ops/kv.h; the formulas and their roundings are those of the plain kernels.
#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/rows/row_kernels.h"

namespace plumb::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr int kTiles = 8;                       // of a latent row, a warp each
constexpr int kTileEach = kLatentTile / kWarp;  // values of a lane
constexpr int kIndexWidth = 256;                // of an index head at most
constexpr int kIndexEach = kIndexWidth / kWarp;
constexpr int kIndexWarps = 4;  // heads or rows of a block
constexpr int kRopeThreads = 256;

struct Angles {
  const float *cos, *sin;  // [rows, half]
  int half;
  bool interleaved, round, round_products, round_angles;
};
template <class Args>
Angles angles(const Args& a, int rope_dim, bool interleaved) {
  return {a.cos,
          a.sin,
          rope_dim / 2,
          interleaved,
          a.numerics.round_bf16,
          a.numerics.round_bf16 && a.numerics.rope_bf16,
          a.numerics.rope_bf16};
}

__device__ float rounded(double value, bool round) {
  const auto f = static_cast<float>(value);
  return round ? round_bf16(f) : f;
}
__device__ int first_of(const Angles& r, int pair) { return r.interleaved ? 2 * pair : pair; }
__device__ int second_of(const Angles& r, int pair) { return r.interleaved ? 2 * pair + 1 : pair + r.half; }

// Pair `pair` of row t, in place.
__device__ void rotate(float& a, float& b, int64_t t, int pair, const Angles& r) {
  const double c = rounded(r.cos[t * r.half + pair], r.round_angles);
  const double s = rounded(r.sin[t * r.half + pair], r.round_angles);
  const double e = a, o = b;
  const auto product = [&](double u, double v) {
    return r.round_products ? static_cast<double>(round_bf16(static_cast<float>(u * v))) : u * v;
  };
  a = rounded(product(e, c) - product(o, s), r.round);
  b = rounded(product(o, c) + product(e, s), r.round);
}

__device__ double warp_sum(double value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAll, value, offset);
  return value;
}
// amax / 448, amax held at 1e-4 or above; a NaN stays one. `value`: of this lane, `each` of them.
template <int kEach>
__device__ float warp_fp8_scale(const float (&value)[kEach]) {
  float amax = 1e-4f;
  const auto take = [&amax](float magnitude) {
    if (!(magnitude <= amax)) amax = magnitude;  // a NaN is taken, and by the others from then on
  };
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    if (amax == amax) take(fabsf(value[j]));
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(kAll, amax, offset);
    if (amax == amax) take(other);
  }
  return amax / 448.0f;
}

__global__ void __launch_bounds__(kRopeThreads)
    rotate_queries(float* x, int64_t ld, int heads, int head_dim, int offset, Angles r) {
  const int64_t t = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y) * kRopeThreads + static_cast<int>(threadIdx.x);
  const int head = i / r.half, pair = i % r.half;
  if (head >= heads) return;
  float* const at = x + t * ld + static_cast<int64_t>(head) * head_dim + offset;
  rotate(at[first_of(r, pair)], at[second_of(r, pair)], t, pair, r);
}

// A warp a tile of the latent, and one more for the rotated part.
__global__ void __launch_bounds__((kTiles + 1) * kWarp)
    write_latents(const float* kv_a, int64_t ld, const float* weight, double eps, Angles r, Paging paging, KvView kv,
                  float* latent, int64_t latent_ld) {
  __shared__ double scratch[32];
  const int64_t t = blockIdx.x;
  const int32_t sequence = paging.sequence[t];
  if (sequence < 0) return;
  const KvGeometry& g = kv.geometry;
  const int rank = g.kv_lora_rank;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int tiles = (rank + kLatentTile - 1) / kLatentTile;
  const float* const from = kv_a + t * ld;
  uint8_t* const out = latent_row_at(kv, paging, sequence, paging.positions[t]);

  float value[kTileEach] = {}, scale_of[kTileEach] = {};
  double squares = 0;
  if (warp < tiles) {
#pragma unroll
    for (int j = 0; j < kTileEach; ++j) {
      const int i = warp * kLatentTile + j * kWarp + lane;
      value[j] = i < rank ? from[i] : 0.0f;
      scale_of[j] = i < rank ? __ldg(weight + i) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kTileEach; ++j) squares += static_cast<double>(value[j]) * static_cast<double>(value[j]);
  }
  const double inverse = 1.0 / sqrt(block_sum(squares, scratch) / rank + eps);
  const auto put = [&](int i, float x) {  // of the row, in the formats that round each value alone
    if (g.latent == KvFormat::F32)
      store_bytes(out + 4 * i, x);
    else if (g.latent == KvFormat::Bf16)
      store_bytes(out + 2 * i, f32_to_bf16(x));
    else
      store_bytes(out + rank + 4 * tiles + 2 * (i - rank), f32_to_bf16(x));
  };
  if (warp >= tiles) {
    for (int pair = lane; pair < r.half; pair += kWarp) {
      float a = from[rank + first_of(r, pair)], b = from[rank + second_of(r, pair)];
      rotate(a, b, t, pair, r);
      put(rank + first_of(r, pair), a);
      put(rank + second_of(r, pair), b);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kTileEach; ++j) {
    const int i = warp * kLatentTile + j * kWarp + lane;
    value[j] = rounded(static_cast<double>(value[j]) * inverse * static_cast<double>(scale_of[j]), r.round);
    if (latent != nullptr && i < rank) latent[t * latent_ld + i] = value[j];
  }
  const bool fp8 = g.latent == KvFormat::Fp8Tile128;
  const float scale = fp8 ? warp_fp8_scale(value) : 1.0f;
  if (fp8 && lane == 0) store_bytes(out + rank + 4 * warp, scale);
#pragma unroll
  for (int j = 0; j < kTileEach; ++j) {
    const int i = warp * kLatentTile + j * kWarp + lane;
    if (i >= rank) continue;
    if (fp8)
      out[i] = f32_to_e4m3(value[j] / scale);
    else
      put(i, value[j]);
  }
}

// A warp's row of up to kIndexWidth values, and what the rotations need of shared memory.
struct IndexRow {
  float x[kIndexWidth];
  double wide[kIndexWidth];
};

__device__ void rotate_row(IndexRow& row, int64_t t, int lane, const Angles& r) {
  __syncwarp();
  for (int pair = lane; pair < r.half; pair += kWarp)
    rotate(row.x[first_of(r, pair)], row.x[second_of(r, pair)], t, pair, r);
  __syncwarp();
}

// Walsh-Hadamard in natural order, scale n^-1/2, n a power of two.
__device__ void hadamard(IndexRow& row, int n, int lane, bool round) {
  for (int i = lane; i < n; i += kWarp) row.wide[i] = row.x[i];
  for (int span = 1; span < n; span *= 2) {
    __syncwarp();
    for (int i = lane; i < n; i += kWarp) {
      if ((i & span) != 0) continue;
      const double a = row.wide[i], b = row.wide[i + span];
      row.wide[i] = a + b;
      row.wide[i + span] = a - b;
    }
  }
  __syncwarp();
  const double scale = 1.0 / sqrt(static_cast<double>(n));
  for (int i = lane; i < n; i += kWarp) row.x[i] = rounded(row.wide[i] * scale, round);
  __syncwarp();
}

__device__ float index_scale(const IndexRow& row, int n, int lane) {
  float mine[kIndexEach];
#pragma unroll
  for (int j = 0; j < kIndexEach; ++j) mine[j] = j * kWarp + lane < n ? row.x[j * kWarp + lane] : 0.0f;
  return warp_fp8_scale(mine);
}

__global__ void __launch_bounds__(kIndexWarps* kWarp)
    write_index_keys(float* k, int64_t ld, const float* weight, const float* bias, double eps, Angles r,
                     bool rotate_all, Paging paging, KvView kv) {
  __shared__ IndexRow rows[kIndexWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kIndexWarps + warp;
  if (t >= paging.rows) return;
  const int32_t sequence = paging.sequence[t];
  if (sequence < 0) return;
  IndexRow& row = rows[warp];
  const KvGeometry& g = kv.geometry;
  const int dim = g.index_head_dim;
  float* const from = k + t * ld;
  float value[kIndexEach];
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kIndexEach; ++j) value[j] = j * kWarp + lane < dim ? from[j * kWarp + lane] : 0.0f;
#pragma unroll
  for (int j = 0; j < kIndexEach; ++j) sum += static_cast<double>(value[j]);
  const double mean = warp_sum(sum) / dim;
  double squares = 0;
#pragma unroll
  for (int j = 0; j < kIndexEach; ++j)
    if (j * kWarp + lane < dim)
      squares += (static_cast<double>(value[j]) - mean) * (static_cast<double>(value[j]) - mean);
  const double inverse = 1.0 / sqrt(warp_sum(squares) / dim + eps);
#pragma unroll
  for (int j = 0; j < kIndexEach; ++j)
    if (const int i = j * kWarp + lane; i < dim)
      row.x[i] = rounded((static_cast<double>(value[j]) - mean) * inverse * static_cast<double>(weight[i]) +
                             static_cast<double>(bias[i]),
                         r.round);
  rotate_row(row, t, lane, r);
  if (rotate_all) hadamard(row, dim, lane, r.round);
  const bool fp8 = g.index_key == IndexKeyFormat::Fp8;
  const float scale = fp8 ? index_scale(row, dim, lane) : 1.0f;
  uint8_t* const page = index_page_at(kv, paging, sequence, paging.positions[t]);
  const int slot = paging.positions[t] % paging.page_tokens;
  if (fp8 && lane == 0) store_bytes(page + static_cast<int64_t>(g.page_tokens) * dim + 4 * slot, scale);
  for (int i = lane; i < dim; i += kWarp) {
    const int at = slot * dim + i;
    from[i] = row.x[i];
    if (g.index_key == IndexKeyFormat::F32)
      store_bytes(page + 4 * at, row.x[i]);
    else if (g.index_key == IndexKeyFormat::Bf16)
      store_bytes(page + 2 * at, f32_to_bf16(row.x[i]));
    else
      page[at] = f32_to_e4m3(row.x[i] / scale);
  }
}

__global__ void __launch_bounds__(kIndexWarps* kWarp)
    index_queries(float* q, int64_t ld, int heads, int head_dim, Angles r, bool rotate_all, bool fp8) {
  __shared__ IndexRow rows[kIndexWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t t = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y) * kIndexWarps + warp;
  if (head >= heads) return;
  IndexRow& row = rows[warp];
  float* const at = q + t * ld + static_cast<int64_t>(head) * head_dim;
#pragma unroll
  for (int j = 0; j < kIndexEach; ++j)
    if (j * kWarp + lane < head_dim) row.x[j * kWarp + lane] = at[j * kWarp + lane];
  rotate_row(row, t, lane, r);
  if (rotate_all) hadamard(row, head_dim, lane, r.round);
  const float scale = fp8 ? index_scale(row, head_dim, lane) : 1.0f;
  for (int i = lane; i < head_dim; i += kWarp)
    at[i] = fp8 ? e4m3_to_f32(f32_to_e4m3(row.x[i] / scale)) * scale : row.x[i];
}

unsigned blocks(int64_t items, int of_a_block) { return static_cast<unsigned>((items + of_a_block - 1) / of_a_block); }

void rope(const RopeArgs& a, Stream& s) {
  const Angles r = angles(a, a.rope_dim, a.interleaved);
  const dim3 grid(static_cast<unsigned>(a.x.dim(0)), blocks(int64_t{a.heads} * r.half, kRopeThreads));
  rotate_queries<<<grid, kRopeThreads, 0, handle(s)>>>(a.x.f32(), a.x.ld, a.heads, a.head_dim, a.offset, r);
}
void kv_write(const KvWriteArgs& a, Stream& s) {
  const int tiles = (a.kv.geometry.kv_lora_rank + kLatentTile - 1) / kLatentTile;
  write_latents<<<static_cast<unsigned>(a.paging.rows), static_cast<unsigned>((tiles + 1) * kWarp), 0, handle(s)>>>(
      a.kv_a.f32(), a.kv_a.ld, a.weight, a.eps, angles(a, a.kv.geometry.rope_dim, true), a.paging, a.kv,
      a.latent.data == nullptr ? nullptr : a.latent.f32(), a.latent.ld);
}
void index_key_write(const IndexKeyWriteArgs& a, Stream& s) {
  write_index_keys<<<blocks(a.paging.rows, kIndexWarps), kIndexWarps * kWarp, 0, handle(s)>>>(
      a.k.f32(), a.k.ld, a.weight, a.bias, a.eps, angles(a, a.rope_dim, a.interleaved), a.numerics.index_hadamard,
      a.paging, a.kv);
}
void index_query(const IndexQueryArgs& a, Stream& s) {
  const dim3 grid(static_cast<unsigned>(a.q.dim(0)), blocks(a.heads, kIndexWarps));
  index_queries<<<grid, kIndexWarps * kWarp, 0, handle(s)>>>(
      a.q.f32(), a.q.ld, a.heads, a.head_dim, angles(a, a.rope_dim, a.interleaved), a.numerics.index_hadamard,
      a.index_key == IndexKeyFormat::Fp8);
}

}  // namespace

void add_cache_write_kernels(std::vector<Kernel>& out) {
  const auto contract = [](Op op) {
    Contract c = row_contract(op, "rows");
    c.accumulate = DType::F64;
    return c;
  };
  out.push_back(make_kernel<RopeArgs, rope>(contract(Op::Rope)));
  Contract latent = contract(Op::KvWrite);
  latent.kv = {KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8Tile128};
  latent.limits.k_max = kTiles * kLatentTile;
  out.push_back(make_kernel<KvWriteArgs, kv_write>(std::move(latent)));
  for (const Op op : {Op::IndexQuery, Op::IndexKeyWrite}) {
    Contract index = contract(op);
    index.index_key = {IndexKeyFormat::F32, IndexKeyFormat::Bf16, IndexKeyFormat::Fp8};
    index.limits.k_max = kIndexWidth;
    out.push_back(op == Op::IndexQuery ? make_kernel<IndexQueryArgs, index_query>(std::move(index))
                                       : make_kernel<IndexKeyWriteArgs, index_key_write>(std::move(index)));
  }
}

}  // namespace plumb::cuda
