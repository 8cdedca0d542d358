// The reference kernels: the definition of every op. Obviously right and accepting everything: weights are decoded row
// by row from the file's own encoding, sums are float64 in a fixed order, and each op rounds once, at its output. Built
// without contraction, so a result depends neither on the machine nor on the number of workers.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb {

std::vector<Kernel> reference_kernels();

}  // namespace plumb
