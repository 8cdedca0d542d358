#include "guard/path_bound.h"

#include <algorithm>
#include <cmath>

namespace plumb {

bool one_order_everywhere(const Plan& plan) {
  return std::ranges::all_of(plan.sites, [](const Site& site) {
    return std::ranges::all_of(site.choices, [&](const Choice& choice) {
      const Contract& contract = choice.kernel->contract;
      return contract.deterministic && contract.batch_invariant &&
             contract.sum_order == site.choices.front().kernel->contract.sum_order;
    });
  });
}

namespace {

double cache_unit(KvFormat format) {
  switch (format) {
    case KvFormat::Bf16:
      return unit_roundoff(DType::BF16);
    case KvFormat::Fp8Tile128:
      return unit_roundoff(DType::F8E4M3);
    case KvFormat::F32:
    case KvFormat::None:
      break;
  }
  return 0;
}

}  // namespace

double path_bound(const Plan& plan, double largest_logit) {
  if (one_order_everywhere(plan)) return 0;
  double squares = 0;
  for (const Site& site : plan.sites) {
    double relative = 0;
    for (const Choice& choice : site.choices) {
      const ErrorBound& bound = choice.kernel->contract.error_bound;
      relative = std::max(relative, bound.c * unit_roundoff(bound.unit));
    }
    squares += relative * relative;
    if (site.decl.call.op == Op::KvWrite) squares += cache_unit(site.decl.call.kv) * std::sqrt(squares);
  }
  return 8 * std::sqrt(squares) * largest_logit;
}

}  // namespace plumb
