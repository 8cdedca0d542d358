// What a planned model takes in memory, and the largest cache that fits beside it.
#pragma once

#include "base/result.h"
#include "model/model_plan.h"

namespace plumb {

// Fills limits, max_context, pages, plan.memory and notes about what fits. Needs out.plan, out.kv and out.with_mtp.
Status fit_memory(const PlanInput& input, const ModelPlanOptions& options, PlannedModel& out);

}  // namespace plumb
