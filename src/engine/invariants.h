// The list of INVARIANTS.md as code.
#pragma once

#include <string>

#include "engine/scheduler.h"

namespace plumb {

// Between two steps. Empty when all hold; else the first that is broken.
std::string broken_invariant(const SequenceQueues& queues, const PrefixTree& cache, const SchedulerLimits& limits);

}  // namespace plumb
