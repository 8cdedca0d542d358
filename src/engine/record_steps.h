// Recordings of decode steps, made before the first request: none of them then waits for one to be made.
#pragma once

#include "engine/engine_options.h"
#include "engine/step.h"

namespace plumb {

struct RecordedSteps {
  int shapes = 0;  // new ones
  double seconds = 0;
};
// Runs steps of padding rows of every shape that decoding takes, drafts included, twice: the first loads what the
// kernels need, the second is recorded. Nothing where a device has no recordings or launches are watched, and for
// shapes that are there already. Observers that put work into the stream must be in place.
RecordedSteps record_steps(Forward& forward, const EngineOptions& options, const StepSizes& sizes);

}  // namespace plumb
