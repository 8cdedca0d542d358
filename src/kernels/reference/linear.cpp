// Linear layers and the gated MLP (model.md 3.4, 3.10).
#include <algorithm>

#include "kernels/reference/mlp.h"

namespace plumb::reference {
namespace {

void linear(const LinearArgs& args, Stream& stream) {
  const EncodedMatrix& matrix = args.w->source;
  for_ranges(stream, strips(matrix.n), [&](int64_t begin, int64_t end) {
    Strip strip(matrix.k);
    double sum[kStrip];
    for (int64_t s = begin; s < end; ++s) {
      const int64_t first = s * kStrip;
      const int64_t count = std::min<int64_t>(kStrip, matrix.n - first);
      strip.load(matrix, first);
      for (int64_t t = 0; t < args.x.dim(0); ++t) {
        strip.dot(args.x.row_f32(t), sum);
        float* y = args.y.row_f32(t) + first;
        for (int64_t i = 0; i < count; ++i) {
          const double bias = args.w->bias != nullptr ? static_cast<double>(args.w->bias[first + i]) : 0.0;
          y[i] = round_output(sum[i] + bias, args.numerics);
        }
      }
    }
  });
}

void mlp(const MlpArgs& args, Stream& stream) {
  const int64_t hidden = args.down->n();
  const int64_t rows = args.x.dim(0);
  constexpr int64_t kBlock = 256;  // rows at a time, to bound the scratch
  std::vector<const float*> x;
  std::vector<double> y;
  for (int64_t first = 0; first < rows; first += kBlock) {
    const int64_t count = std::min(kBlock, rows - first);
    x.clear();
    for (int64_t t = 0; t < count; ++t) x.push_back(args.x.row_f32(first + t));
    y.assign(static_cast<size_t>(count * hidden), 0.0);
    mlp_rows({.gate = args.gate, .up = args.up, .down = args.down, .x = x, .y = y.data()}, args.numerics, stream);
    for (int64_t t = 0; t < count; ++t) {
      float* out = args.y.row_f32(first + t);
      for (int64_t i = 0; i < hidden; ++i) out[i] = round_output(y[static_cast<size_t>(t * hidden + i)], args.numerics);
    }
  }
}

}  // namespace

void add_linear_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<LinearArgs, linear>(reference_contract(Op::Linear)));
  out.push_back(make_kernel<MlpArgs, mlp>(reference_contract(Op::Mlp)));
}

}  // namespace plumb::reference
