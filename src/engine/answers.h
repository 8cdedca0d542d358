// Two answers to one prompt, by paths that may differ by their rounding: a near tie can draw another token, and what
// follows is another text.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/probe.h"
#include "ops/plan.h"

namespace plumb {

// The last position whose logits both have computed from the same tokens. `prompt`: its number of tokens.
int last_common(int prompt, const std::vector<int32_t>& have, const std::vector<int32_t>& want);

// The first tokens that differ have logits that are nearer to each other than the paths of `plan` may move them.
// `logits`: those that `want` was drawn from.
bool near_tie(const Plan& plan, const ProbeLogits& logits, int prompt, const std::vector<int32_t>& have,
              const std::vector<int32_t>& want);

}  // namespace plumb
