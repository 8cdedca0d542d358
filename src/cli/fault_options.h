// Planted faults on the command line, in builds with PLUMB_FAULTS; other builds have no such option.
#pragma once

#include <functional>

#include "cli/model_options.h"

namespace plumb {

void add_fault_options(CLI::App& command, ModelOptions& options);
// Plants what the options ask for into a loaded model. Empty when they ask for nothing. Both must outlive it.
std::function<Status(LoadedModel&)> fault_planter(const ModelOptions& options, const Registry& registry);

}  // namespace plumb
