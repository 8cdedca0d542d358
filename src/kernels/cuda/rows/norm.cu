// RMSNorm, alone and after the residual's sum: a block a row, the row in registers, so that all of its loads are under
// way at once. Sums in float64, in a fixed tree.
#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/rows/row_kernels.h"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kMost = 16;  // values of a thread
constexpr int kFew = 4;    // of a narrow row's (q_lora_rank)

struct Norm {
  float* x = nullptr;  // [rows, n]; with a delta the residual, which becomes the sum
  int64_t x_ld = 0;
  const float* delta = nullptr;
  int64_t delta_ld = 0;
  const float* weight = nullptr;
  float* y = nullptr;
  int64_t y_ld = 0;
  int n = 0;
  double eps = 0;
  bool round = false, twice = false;
};

template <int kEach, bool kAdds>
__global__ void __launch_bounds__(kThreads) normalise(Norm p) {
  __shared__ double scratch[32];
  const int64_t t = blockIdx.x;
  const int first = static_cast<int>(threadIdx.x);
  float* const x = p.x + t * p.x_ld;
  const float* const delta = kAdds ? p.delta + t * p.delta_ld : nullptr;
  float value[kEach], added[kEach], weight[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = first + j * kThreads;
    value[j] = i < p.n ? x[i] : 0.0f;
    if constexpr (kAdds) added[j] = i < p.n ? delta[i] : 0.0f;
    weight[j] = i < p.n ? __ldg(p.weight + i) : 0.0f;
  }
  double squares = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if constexpr (kAdds) {
      const auto sum = static_cast<float>(static_cast<double>(value[j]) + static_cast<double>(added[j]));
      value[j] = p.round ? round_bf16(sum) : sum;
      if (const int i = first + j * kThreads; i < p.n) x[i] = value[j];
    }
    squares += static_cast<double>(value[j]) * static_cast<double>(value[j]);
  }
  const double inverse = 1.0 / sqrt(block_sum(squares, scratch) / p.n + p.eps);
  float* const y = p.y + t * p.y_ld;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = first + j * kThreads;
    if (i >= p.n) break;
    double scaled = static_cast<double>(value[j]) * inverse;
    if (p.twice) scaled = static_cast<double>(round_bf16(static_cast<float>(scaled)));
    const auto result = static_cast<float>(scaled * static_cast<double>(weight[j]));
    y[i] = p.round ? round_bf16(result) : result;
  }
}

template <bool kAdds>
void launch(Norm p, const Numerics& numerics, int64_t rows, Stream& s) {
  p.round = numerics.round_bf16;
  p.twice = numerics.round_bf16 && numerics.norm_two_roundings;
  const auto grid = static_cast<unsigned>(rows);
  if (p.n <= kFew * kThreads)
    normalise<kFew, kAdds><<<grid, kThreads, 0, handle(s)>>>(p);
  else
    normalise<kMost, kAdds><<<grid, kThreads, 0, handle(s)>>>(p);
}

void rms_norm(const RmsNormArgs& a, Stream& s) {
  launch<false>({.x = a.x.f32(),
                 .x_ld = a.x.ld,
                 .weight = a.weight,
                 .y = a.y.f32(),
                 .y_ld = a.y.ld,
                 .n = static_cast<int>(a.x.dim(1)),
                 .eps = a.eps},
                a.numerics, a.x.dim(0), s);
}
void add_rms_norm(const AddRmsNormArgs& a, Stream& s) {
  launch<true>({.x = a.residual.f32(),
                .x_ld = a.residual.ld,
                .delta = a.delta.f32(),
                .delta_ld = a.delta.ld,
                .weight = a.weight,
                .y = a.y.f32(),
                .y_ld = a.y.ld,
                .n = static_cast<int>(a.residual.dim(1)),
                .eps = a.eps},
               a.numerics, a.residual.dim(0), s);
}

}  // namespace

void add_norm_kernels(std::vector<Kernel>& out) {
  for (const Op op : {Op::RmsNorm, Op::AddRmsNorm}) {
    Contract c = row_contract(op, "rows");
    c.accumulate = DType::F64;
    c.limits.k_max = kMost * kThreads;
    out.push_back(op == Op::RmsNorm ? make_kernel<RmsNormArgs, rms_norm>(std::move(c))
                                    : make_kernel<AddRmsNormArgs, add_rms_norm>(std::move(c)));
  }
}

}  // namespace plumb::cuda
