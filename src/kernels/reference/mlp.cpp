#include "kernels/reference/mlp.h"

#include <algorithm>
#include <cmath>

namespace plumb::reference {

double silu(double x) { return x / (1.0 + std::exp(-x)); }

namespace {

double gated(double gate, double up, const Numerics& numerics) {
  if (!numerics.round_bf16) return silu(gate) * up;
  const auto rounded = [&](double value) { return static_cast<double>(round_output(value, numerics)); };
  return rounded(rounded(silu(rounded(gate))) * rounded(up));
}

}  // namespace

void mlp_rows(const MlpRows& args, const Numerics& numerics, Stream& stream) {
  const int64_t rows = static_cast<int64_t>(args.x.size());
  const int64_t inter = args.gate->n();
  const int64_t hidden = args.down->n();
  std::vector<double> middle(static_cast<size_t>(rows * inter));
  for_ranges(stream, strips(inter), [&](int64_t begin, int64_t end) {
    Strip gate(args.gate->k());
    Strip up(args.up->k());
    double g[kStrip];
    double u[kStrip];
    for (int64_t s = begin; s < end; ++s) {
      const int64_t first = s * kStrip;
      gate.load(args.gate->source, first);
      up.load(args.up->source, first);
      for (int64_t t = 0; t < rows; ++t) {
        gate.dot(args.x[static_cast<size_t>(t)], g);
        up.dot(args.x[static_cast<size_t>(t)], u);
        for (int64_t i = 0; i < std::min<int64_t>(kStrip, inter - first); ++i) {
          middle[static_cast<size_t>(t * inter + first + i)] = gated(g[i], u[i], numerics);
        }
      }
    }
  });
  for_ranges(stream, strips(hidden), [&](int64_t begin, int64_t end) {
    Strip down(inter);
    double sum[kStrip];
    for (int64_t s = begin; s < end; ++s) {
      const int64_t first = s * kStrip;
      down.load(args.down->source, first);
      for (int64_t t = 0; t < rows; ++t) {
        down.dot(middle.data() + t * inter, sum);
        std::copy_n(sum, std::min<int64_t>(kStrip, hidden - first), args.y + t * hidden + first);
      }
    }
  });
}

}  // namespace plumb::reference
