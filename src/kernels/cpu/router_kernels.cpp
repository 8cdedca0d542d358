// Router: f32 products, then the choice of experts as ops/args.h says (model.md 3.10).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/check.h"
#include "kernels/cpu/product.h"

namespace plumb::cpu {
namespace {

constexpr int kMaxExperts = 1024;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// NaN counts as -inf.
float comparable(float x) { return std::isnan(x) ? kMinusInf : x; }

// The largest not yet taken, ties to the lower index; -1 when all are taken.
int best(const float* score, int count, const bool* taken) {
  int found = -1;
  for (int i = 0; i < count; ++i) {
    if (!taken[i] && (found < 0 || comparable(score[i]) > comparable(score[found]))) found = i;
  }
  return found;
}

// The scores of all but the best `topk_group` groups become -inf. A group's score: the sum of its two largest.
void limit_groups(float* score, int experts, int n_group, int topk_group) {
  const int size = experts / n_group;
  float group_score[kMaxExperts];
  bool kept[kMaxExperts] = {};
  for (int g = 0; g < n_group; ++g) {
    bool taken[kMaxExperts] = {};
    const float* group = score + g * size;
    const int first = best(group, size, taken);
    taken[first] = true;
    const int second = best(group, size, taken);
    group_score[g] = second < 0 ? group[first] : group[first] + group[second];
  }
  for (int i = 0; i < topk_group; ++i) {
    const int g = best(group_score, n_group, kept);
    if (g >= 0) kept[g] = true;
  }
  for (int e = 0; e < experts; ++e)
    if (!kept[e / size]) score[e] = kMinusInf;
}

void choose_experts(const RouterArgs& args, int64_t t) {
  const int experts = static_cast<int>(args.gate->n());
  const int64_t k = args.experts.dim(1);
  if (args.sequence != nullptr && args.sequence[t] < 0) {
    std::fill_n(args.experts.row_i32(t), k, -1);
    return;
  }
  const float* logits = args.logits.row_f32(t);
  float sigmoid[kMaxExperts];
  float score[kMaxExperts];
  bool taken[kMaxExperts] = {};
  for (int e = 0; e < experts; ++e) {
    sigmoid[e] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logits[e]))));
    score[e] = args.bias != nullptr ? sigmoid[e] + args.bias[e] : sigmoid[e];
  }
  if (args.n_group > 1) limit_groups(score, experts, args.n_group, args.topk_group);
  int32_t* chosen = args.experts.row_i32(t);
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    const int e = best(score, experts, taken);
    taken[e] = true;
    chosen[i] = e;
    sum += static_cast<double>(sigmoid[e]);
  }
  const double norm = args.norm_topk_prob ? sum + 1e-20 : 1.0;
  for (int64_t i = 0; i < k; ++i)
    args.weights.row_f32(t)[i] = static_cast<float>(static_cast<double>(sigmoid[chosen[i]]) / norm *
                                                    static_cast<double>(args.routed_scaling_factor));
}

void router(const Tier& tier, const RouterArgs& args, Stream& stream) {
  const StripMatrix w = strip_matrix(*args.gate);
  const Rows rows{.x = args.x.f32(), .ld = args.x.ld, .count = static_cast<int>(args.x.dim(0)), .k = args.x.dim(1)};
  PLUMB_CHECK(rows.k == w.k && w.n <= kMaxExperts && args.experts.dim(1) <= w.n, "shapes of a router");
  PLUMB_CHECK(static_cast<size_t>(packed_bytes(tier, rows)) <= stream.workspace_bytes, "workspace of a router");
  on_workers(stream, [&](int worker, int workers) {
    const Range part = split(tiles(rows.count), worker, workers);
    pack_tiles(tier, rows, static_cast<int>(part.begin), static_cast<int>(part.end), stream.workspace);
  });
  on_workers(stream, [&](int worker, int workers) {
    const Range range = split_strips(w.strips, tier.group_strips(w.coding, rows.count), worker, workers);
    product(tier, w, range, stream.workspace, rows.count, [&](const GroupResult& result) {
      for (int r = 0; r < result.rows; ++r)
        std::memcpy(args.logits.row_f32(result.row0 + r) + result.n0, result.values + r * result.ld,
                    static_cast<size_t>(result.outputs) * sizeof(float));
    });
  });
  on_workers(stream, [&](int worker, int workers) {
    const Range range = split(rows.count, worker, workers);
    for (int64_t t = range.begin; t < range.end; ++t) choose_experts(args, t);
  });
}

size_t router_workspace(const Call& call) { return static_cast<size_t>(call.m_hi * ceil_div(call.k, 4) * 16); }

template <const Tier& tier>
void router_on(const RouterArgs& args, Stream& stream) {
  router(tier, args, stream);
}

template <const Tier& tier>
void add_router(std::vector<Kernel>& out, Isa isa) {
  const Family family{"float", {kBf16, kF32, kF16}};
  Contract contract = strip_contract(Op::Router, family, isa);
  contract.name = "router.float.strip16." + to_string(isa);
  contract.workspace = router_workspace;
  contract.limits.n_max = kMaxExperts;
  out.push_back(make_kernel<RouterArgs, router_on<tier>>(std::move(contract)));
}

}  // namespace

// Published models route on f32 products, so there is no bf16 router.
std::vector<Kernel> router_kernels() {
  std::vector<Kernel> kernels;
  add_router<kTierGeneric>(kernels, Isa::Generic);
#if defined(__x86_64__)
  add_router<kTierAvx2>(kernels, Isa::Avx2);
  add_router<kTierAvx512>(kernels, Isa::Avx512);
#endif
  return kernels;
}

}  // namespace plumb::cpu
