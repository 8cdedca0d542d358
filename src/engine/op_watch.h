// Ops of a running check against the reference.
#pragma once

#include <functional>

#include "engine/self_check.h"
#include "guard/op_recorder.h"

namespace plumb {

// Judges the rows of ops that `wanted` chooses while `body` runs. The first op out of bound is the verdict, with the
// kernels that pass on its inputs; nothing is judged after it, since what follows may follow from it.
void watch_ops(const SelfCheckInput& input, Check& check,
               const std::function<RowRange(const OpCall&, const Site&)>& wanted, const std::function<void()>& body);

}  // namespace plumb
