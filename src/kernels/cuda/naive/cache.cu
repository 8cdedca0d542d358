// Plain kernels that write the cache: one block a row. Layouts: ops/kv.h; rounding as kernels/reference/cache.cpp.
#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/naive/naive.h"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 128;

struct Rotation {
  const float* cos;
  const float* sin;
  int rope_dim;
  bool interleaved, round, round_products, round_angles;
};
template <class Args>
Rotation rotation(const Args& a, int rope_dim, bool interleaved) {
  return {a.cos,
          a.sin,
          rope_dim,
          interleaved,
          a.numerics.round_bf16,
          a.numerics.round_bf16 && a.numerics.rope_bf16,
          a.numerics.rope_bf16};
}

__device__ float rounded(double value, bool round) {
  const float f = static_cast<float>(value);
  return round ? round_bf16(f) : f;
}

// In shared memory, all threads of the block.
__device__ void rotate(float* x, int64_t t, const Rotation& r) {
  const int half = r.rope_dim / 2;
  for (int i = static_cast<int>(threadIdx.x); i < half; i += static_cast<int>(blockDim.x)) {
    float& a = x[r.interleaved ? 2 * i : i];
    float& b = x[r.interleaved ? 2 * i + 1 : i + half];
    const double c = rounded(r.cos[t * half + i], r.round_angles), s = rounded(r.sin[t * half + i], r.round_angles);
    const double e = a, o = b;
    const auto product = [&](double u, double v) {
      return r.round_products ? static_cast<double>(round_bf16(static_cast<float>(u * v))) : u * v;
    };
    a = rounded(product(e, c) - product(o, s), r.round);
    b = rounded(product(o, c) + product(e, s), r.round);
  }
  __syncthreads();
}

// Walsh-Hadamard in natural order, scale n^-1/2, n a power of two; `wide` holds n doubles.
__device__ void hadamard(float* x, double* wide, int n, bool round) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) wide[i] = x[i];
  __syncthreads();
  for (int span = 1; span < n; span *= 2) {
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
      if ((i & span) != 0) continue;
      const double a = wide[i], b = wide[i + span];
      wide[i] = a + b;
      wide[i + span] = a - b;
    }
    __syncthreads();
  }
  const double scale = 1.0 / sqrt(static_cast<double>(n));
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
    x[i] = rounded(wide[i] * scale, round);
  __syncthreads();
}

__global__ void kv_write_rows(Act kv_a, const float* weight, double eps, Rotation rot, Paging paging, KvView kv,
                              Act latent) {
  extern __shared__ float row[];  // kv_lora_rank + rope_dim
  __shared__ double scratch[32];
  const int64_t t = blockIdx.x;
  const int32_t sequence = paging.sequence[t];
  if (sequence < 0) return;
  const int rank = kv.geometry.kv_lora_rank;
  const int all = rank + kv.geometry.rope_dim;
  double squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    row[i] = kv_a.load(t, i);
    if (i < rank) squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  }
  const double inverse = 1.0 / sqrt(block_sum(squares, scratch) / rank + eps);
  for (int i = static_cast<int>(threadIdx.x); i < rank; i += static_cast<int>(blockDim.x)) {
    row[i] = rounded(static_cast<double>(row[i]) * inverse * static_cast<double>(weight[i]), rot.round);
    if (latent.data != nullptr) latent.store(t, i, row[i], false);
  }
  __syncthreads();
  rotate(row + rank, t, rot);
  write_latent(kv.geometry, row, latent_row_at(kv, paging, sequence, paging.positions[t]));
}

__global__ void index_key_rows(Act k, const float* weight, const float* bias, double eps, Rotation rot, bool rotate_all,
                               Paging paging, KvView kv) {
  extern __shared__ double wide[];  // head_dim doubles, then head_dim floats
  __shared__ double scratch[32];
  const int64_t t = blockIdx.x;
  const int32_t sequence = paging.sequence[t];
  if (sequence < 0) return;
  const int dim = kv.geometry.index_head_dim;
  auto* row = reinterpret_cast<float*>(wide + dim);
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += static_cast<int>(blockDim.x)) sum += row[i] = k.load(t, i);
  const double mean = block_sum(sum, scratch) / dim;
  double squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += static_cast<int>(blockDim.x))
    squares += (static_cast<double>(row[i]) - mean) * (static_cast<double>(row[i]) - mean);
  const double inverse = 1.0 / sqrt(block_sum(squares, scratch) / dim + eps);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += static_cast<int>(blockDim.x))
    row[i] = rounded(
        (static_cast<double>(row[i]) - mean) * inverse * static_cast<double>(weight[i]) + static_cast<double>(bias[i]),
        rot.round);
  __syncthreads();
  rotate(row, t, rot);
  if (rotate_all) hadamard(row, wide, dim, rot.round);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += static_cast<int>(blockDim.x)) k.store(t, i, row[i], false);
  write_index_key(kv.geometry, row, index_page_at(kv, paging, sequence, paging.positions[t]),
                  paging.positions[t] % paging.page_tokens);
}

__global__ void index_query_rows(Act q, int head_dim, Rotation rot, bool rotate_all, bool fp8) {
  extern __shared__ double wide[];
  const int64_t t = blockIdx.x;
  const int64_t base = static_cast<int64_t>(blockIdx.y) * head_dim;
  auto* row = reinterpret_cast<float*>(wide + head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += static_cast<int>(blockDim.x))
    row[i] = q.load(t, base + i);
  __syncthreads();
  rotate(row, t, rot);
  if (rotate_all) hadamard(row, wide, head_dim, rot.round);
  const float scale = fp8 ? fp8_scale(row, head_dim) : 1.0f;
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += static_cast<int>(blockDim.x))
    q.store(t, base + i, fp8 ? e4m3_to_f32(f32_to_e4m3(row[i] / scale)) * scale : row[i], false);
}

void kv_write(const KvWriteArgs& a, Stream& s) {
  const auto bytes = static_cast<size_t>(a.kv.geometry.kv_lora_rank + a.kv.geometry.rope_dim) * sizeof(float);
  kv_write_rows<<<static_cast<unsigned>(a.paging.rows), kThreads, bytes, handle(s)>>>(
      act(a.kv_a), a.weight, a.eps, rotation(a, a.kv.geometry.rope_dim, true), a.paging, a.kv, act(a.latent));
}
void index_key_write(const IndexKeyWriteArgs& a, Stream& s) {
  const auto bytes = static_cast<size_t>(a.kv.geometry.index_head_dim) * (sizeof(double) + sizeof(float));
  index_key_rows<<<static_cast<unsigned>(a.paging.rows), kThreads, bytes, handle(s)>>>(
      act(a.k), a.weight, a.bias, a.eps, rotation(a, a.rope_dim, a.interleaved), a.numerics.index_hadamard, a.paging,
      a.kv);
}
void index_query(const IndexQueryArgs& a, Stream& s) {
  const auto bytes = static_cast<size_t>(a.head_dim) * (sizeof(double) + sizeof(float));
  const dim3 grid(static_cast<unsigned>(a.q.dim(0)), static_cast<unsigned>(a.heads));
  index_query_rows<<<grid, kThreads, bytes, handle(s)>>>(act(a.q), a.head_dim, rotation(a, a.rope_dim, a.interleaved),
                                                         a.numerics.index_hadamard, a.index_key == IndexKeyFormat::Fp8);
}

}  // namespace

void add_naive_cache_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<KvWriteArgs, kv_write>(naive_contract(Op::KvWrite)));
  out.push_back(make_kernel<IndexKeyWriteArgs, index_key_write>(naive_contract(Op::IndexKeyWrite)));
  out.push_back(make_kernel<IndexQueryArgs, index_query>(naive_contract(Op::IndexQuery)));
}

}  // namespace plumb::cuda
