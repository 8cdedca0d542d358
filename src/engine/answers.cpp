#include "engine/answers.h"

#include <algorithm>
#include <cmath>

#include "guard/path_bound.h"

namespace plumb {

int last_common(int prompt, const std::vector<int32_t>& have, const std::vector<int32_t>& want) {
  const auto differs = std::ranges::mismatch(have, want).in1;
  return prompt - 1 + static_cast<int>(differs - have.begin());
}

bool near_tie(const Plan& plan, const ProbeLogits& logits, int prompt, const std::vector<int32_t>& have,
              const std::vector<int32_t>& want) {
  const auto i = static_cast<size_t>(std::ranges::mismatch(have, want).in1 - have.begin());
  const auto at = logits.find(last_common(prompt, have, want));
  if (i >= have.size() || i >= want.size() || at == logits.end()) return false;
  const auto logit = [&](int32_t id) { return static_cast<double>(at->second[static_cast<size_t>(id)]); };
  double largest = 0;
  for (const float x : at->second) largest = std::max(largest, std::fabs(static_cast<double>(x)));
  return std::fabs(logit(have[i]) - logit(want[i])) < 2 * path_bound(plan, largest);
}

}  // namespace plumb
