// Router and experts (model.md 3.10).
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/mlp.h"

namespace plumb::reference {
namespace {

// Order of choice: the larger first, then the lower index; NaN counts as -inf.
float comparable(float x) { return std::isnan(x) ? kMinusInf : x; }
std::vector<int32_t> best(const std::vector<float>& score, int64_t count) {
  std::vector<int32_t> ids(score.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return comparable(score[static_cast<size_t>(a)]) > comparable(score[static_cast<size_t>(b)]);
  });
  ids.resize(static_cast<size_t>(count));
  return ids;
}

// Leaves the experts of the best `topk_group` groups; the others' scores become -inf. A group's score is the sum of its
// two largest.
void limit_groups(std::vector<float>& score, int n_group, int topk_group) {
  const size_t size = score.size() / static_cast<size_t>(n_group);
  std::vector<float> group_score;
  for (size_t g = 0; g < static_cast<size_t>(n_group); ++g) {
    std::vector<float> group(score.begin() + static_cast<std::ptrdiff_t>(g * size),
                             score.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(group.begin(), group.end(), [](float a, float b) { return comparable(a) > comparable(b); });
    group_score.push_back(size > 1 ? group[0] + group[1] : group[0]);
  }
  std::vector<bool> kept(static_cast<size_t>(n_group), false);
  for (const int32_t g : best(group_score, topk_group)) kept[static_cast<size_t>(g)] = true;
  for (size_t e = 0; e < score.size(); ++e) {
    if (!kept[e / size]) score[e] = kMinusInf;
  }
}

void choose_experts(const RouterArgs& args, int64_t t) {
  const int64_t experts = args.gate->n();
  const int64_t k = args.experts.dim(1);
  const float* logits = args.logits.row_f32(t);
  std::vector<float> sigmoid(static_cast<size_t>(experts));
  std::vector<float> score(static_cast<size_t>(experts));
  for (int64_t e = 0; e < experts; ++e) {
    const size_t i = static_cast<size_t>(e);
    sigmoid[i] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logits[e]))));
    score[i] = args.bias != nullptr ? sigmoid[i] + args.bias[e] : sigmoid[i];
  }
  if (args.n_group > 1) limit_groups(score, args.n_group, args.topk_group);
  const std::vector<int32_t> chosen = best(score, k);
  double sum = 0;
  for (const int32_t e : chosen) sum += static_cast<double>(sigmoid[static_cast<size_t>(e)]);
  const double norm = args.norm_topk_prob ? sum + 1e-20 : 1.0;
  for (int64_t i = 0; i < k; ++i) {
    const int32_t e = chosen[static_cast<size_t>(i)];
    args.experts.row_i32(t)[i] = e;
    args.weights.row_f32(t)[i] = static_cast<float>(static_cast<double>(sigmoid[static_cast<size_t>(e)]) / norm *
                                                    static_cast<double>(args.routed_scaling_factor));
  }
}

void router(const RouterArgs& args, Stream& stream) {
  const EncodedMatrix& gate = args.gate->source;
  const int64_t rows = args.x.dim(0);
  for_ranges(stream, strips(gate.n), [&](int64_t begin, int64_t end) {
    Strip strip(gate.k);
    double sum[kStrip];
    for (int64_t s = begin; s < end; ++s) {
      const int64_t first = s * kStrip;
      strip.load(gate, first);
      for (int64_t t = 0; t < rows; ++t) {
        strip.dot(args.x.row_f32(t), sum);
        std::copy_n(sum, std::min<int64_t>(kStrip, gate.n - first), args.logits.row_f32(t) + first);
      }
    }
  });
  for_ranges(stream, rows, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (args.sequence != nullptr && args.sequence[t] < 0)
        std::fill_n(args.experts.row_i32(t), args.experts.dim(1), -1);
      else
        choose_experts(args, t);
    }
  });
}

// Rows [first, first + count) of the step. `slots`: [count, k, hidden], each expert's output of each row's choices.
void run_experts(const MoeArgs& args, int64_t first, int64_t count, std::vector<double>& slots, Stream& stream) {
  const int64_t k = args.experts.dim(1);
  const int64_t hidden = args.x.dim(1);
  std::vector<const float*> x;
  std::vector<int64_t> where;
  std::vector<double> y;
  for (size_t e = 0; e < args.gate.size(); ++e) {
    x.clear();
    where.clear();
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t i = 0; i < k; ++i) {
        if (args.experts.row_i32(first + t)[i] != args.first_expert + static_cast<int32_t>(e)) continue;
        x.push_back(args.x.row_f32(first + t));
        where.push_back(t * k + i);
      }
    }
    if (x.empty()) continue;
    y.resize(x.size() * static_cast<size_t>(hidden));
    mlp_rows({.gate = &args.gate[e], .up = &args.up[e], .down = &args.down[e], .x = x, .y = y.data()}, args.numerics,
             stream);
    for (size_t row = 0; row < where.size(); ++row) {
      std::copy_n(y.data() + row * static_cast<size_t>(hidden), hidden, slots.data() + where[row] * hidden);
    }
  }
}

// The weighted sum is rounded before the shared expert is added where rounding to bf16 is asked for (model.md 3.10).
void combine(const MoeArgs& args, int64_t t, const double* slots) {
  const int64_t k = args.experts.dim(1);
  const int64_t hidden = args.x.dim(1);
  const bool bf16 = args.numerics.round_bf16;
  for (int64_t i = 0; i < hidden; ++i) {
    double sum = 0;
    for (int64_t slot = 0; slot < k; ++slot) {
      if (args.experts.row_i32(t)[slot] < 0) continue;
      const double value = slots[slot * hidden + i];
      const double output = bf16 ? static_cast<double>(round_output(value, args.numerics)) : value;
      sum += static_cast<double>(args.weights.row_f32(t)[slot]) * output;
    }
    if (bf16) sum = static_cast<double>(round_output(sum, args.numerics));
    if (args.shared.data != nullptr) sum += static_cast<double>(args.shared.row_f32(t)[i]);
    args.y.row_f32(t)[i] = round_output(sum, args.numerics);
  }
}

void moe(const MoeArgs& args, Stream& stream) {
  const int64_t rows = args.x.dim(0);
  const int64_t width = args.experts.dim(1) * args.x.dim(1);
  constexpr int64_t kBlock = 256;  // rows at a time, to bound the scratch
  std::vector<double> slots;
  for (int64_t first = 0; first < rows; first += kBlock) {
    const int64_t count = std::min(kBlock, rows - first);
    slots.assign(static_cast<size_t>(count * width), 0.0);
    run_experts(args, first, count, slots, stream);
    for_ranges(stream, count, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) combine(args, first + t, slots.data() + t * width);
    });
  }
}

}  // namespace

void add_expert_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<RouterArgs, router>(reference_contract(Op::Router)));
  out.push_back(make_kernel<MoeArgs, moe>(reference_contract(Op::Moe)));
}

}  // namespace plumb::reference
