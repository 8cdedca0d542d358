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

double path_bound(const Plan& plan, double largest_logit) {
  if (one_order_everywhere(plan)) return 0;
  double squares = 0;
  for (const Site& site : plan.sites) {
    const ErrorBound& bound = site.choices.back().kernel->contract.error_bound;
    const double relative = bound.c * unit_roundoff(bound.unit);
    squares += relative * relative;
  }
  return 8 * std::sqrt(squares) * largest_logit;
}

}  // namespace plumb
