// Plain kernels of the ops that work on a row alone. One block a row, float64 sums in a fixed tree.
#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/naive/naive.h"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void embed_rows(const int32_t* ids, Mat table, Act y, bool round) {
  const int64_t t = blockIdx.x;
  const int32_t id = ids[t];
  const bool inside = id >= 0 && id < table.n;  // an id outside belongs to a padding row
  for (int64_t i = threadIdx.x; i < table.k; i += blockDim.x) y.store(t, i, inside ? table.at(id, i) : 0.0f, round);
}

// y = x * rsqrt(mean(x^2) + eps) * weight, after residual += delta where there is one
__global__ void norm_rows(Act x, Act delta, const float* weight, int64_t n, double eps, Act y, bool round, bool twice) {
  __shared__ double scratch[32];
  const int64_t t = blockIdx.x;
  double squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    if (delta.data != nullptr)
      x.store(t, i, static_cast<double>(x.load(t, i)) + static_cast<double>(delta.load(t, i)), round);
    const double value = x.load(t, i);
    squares += value * value;
  }
  const double inverse = 1.0 / sqrt(block_sum(squares, scratch) / static_cast<double>(n) + eps);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    double value = static_cast<double>(x.load(t, i)) * inverse;
    if (twice) value = round_bf16(static_cast<float>(value));
    y.store(t, i, value * static_cast<double>(weight[i]), round);
  }
}

__global__ void gather(Act x, const int32_t* rows, int64_t n, Act y) {
  const int64_t r = blockIdx.x;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y.store(r, i, x.load(rows[r], i), false);
}

__global__ void finite(Act x, int64_t n, int32_t* out, int64_t out_ld) {
  const int64_t t = blockIdx.x;
  bool bad = false;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) bad |= !(fabsf(x.load(t, i)) < INFINITY);
  bad = __syncthreads_or(bad) != 0;
  if (threadIdx.x == 0) out[t * out_ld] = bad ? 0 : 1;
}

struct RopeParams {
  int head_dim, offset, rope_dim;
  bool interleaved, round, round_products, round_angles;
  const float* cos;
  const float* sin;
};

__global__ void rope_rows(Act x, RopeParams p) {
  const int64_t t = blockIdx.x;
  const int64_t base = static_cast<int64_t>(blockIdx.y) * p.head_dim + p.offset;
  const int half = p.rope_dim / 2;
  for (int i = static_cast<int>(threadIdx.x); i < half; i += static_cast<int>(blockDim.x)) {
    const int64_t a = base + (p.interleaved ? 2 * i : i);
    const int64_t b = base + (p.interleaved ? 2 * i + 1 : i + half);
    const double c = p.round_angles ? round_bf16(p.cos[t * half + i]) : p.cos[t * half + i];
    const double s = p.round_angles ? round_bf16(p.sin[t * half + i]) : p.sin[t * half + i];
    const double e = x.load(t, a);
    const double o = x.load(t, b);
    const auto product = [&](double u, double v) {
      return p.round_products ? static_cast<double>(round_bf16(static_cast<float>(u * v))) : u * v;
    };
    x.store(t, a, product(e, c) - product(o, s), p.round);
    x.store(t, b, product(o, c) + product(e, s), p.round);
  }
}

unsigned rows_of(const Tensor& t) { return static_cast<unsigned>(t.dim(0)); }

void embed(const EmbedArgs& a, Stream& s) {
  embed_rows<<<rows_of(a.y), kThreads, 0, handle(s)>>>(a.ids, mat(*a.table), act(a.y), a.numerics.round_bf16);
}
void rms_norm(const RmsNormArgs& a, Stream& s) {
  norm_rows<<<rows_of(a.x), kThreads, 0, handle(s)>>>(act(a.x), Act{}, a.weight, a.x.dim(1), a.eps, act(a.y),
                                                      a.numerics.round_bf16,
                                                      a.numerics.round_bf16 && a.numerics.norm_two_roundings);
}
void add_rms_norm(const AddRmsNormArgs& a, Stream& s) {
  norm_rows<<<rows_of(a.residual), kThreads, 0, handle(s)>>>(act(a.residual), act(a.delta), a.weight, a.residual.dim(1),
                                                             a.eps, act(a.y), a.numerics.round_bf16,
                                                             a.numerics.round_bf16 && a.numerics.norm_two_roundings);
}
void gather_rows(const GatherRowsArgs& a, Stream& s) {
  gather<<<rows_of(a.y), kThreads, 0, handle(s)>>>(act(a.x), a.rows, a.y.dim(1), act(a.y));
}
void finite_rows(const FiniteRowsArgs& a, Stream& s) {
  finite<<<rows_of(a.x), kThreads, 0, handle(s)>>>(act(a.x), a.x.dim(1), a.finite.i32(), a.finite.ld);
}
void rope(const RopeArgs& a, Stream& s) {
  const RopeParams p{a.head_dim,
                     a.offset,
                     a.rope_dim,
                     a.interleaved,
                     a.numerics.round_bf16,
                     a.numerics.round_bf16 && a.numerics.rope_bf16,
                     a.numerics.rope_bf16,
                     a.cos,
                     a.sin};
  rope_rows<<<dim3(rows_of(a.x), static_cast<unsigned>(a.heads)), 64, 0, handle(s)>>>(act(a.x), p);
}

}  // namespace

void add_naive_row_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<EmbedArgs, embed>(naive_contract(Op::Embed)));
  out.push_back(make_kernel<RmsNormArgs, rms_norm>(naive_contract(Op::RmsNorm)));
  out.push_back(make_kernel<AddRmsNormArgs, add_rms_norm>(naive_contract(Op::AddRmsNorm)));
  out.push_back(make_kernel<GatherRowsArgs, gather_rows>(naive_contract(Op::GatherRows)));
  out.push_back(make_kernel<FiniteRowsArgs, finite_rows>(naive_contract(Op::FiniteRows)));
  out.push_back(make_kernel<RopeArgs, rope>(naive_contract(Op::Rope)));
}

}  // namespace plumb::cuda
