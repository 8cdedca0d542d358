// Linear, Mlp, Moe and Router on weights in strips of 16, for every instruction set of this architecture.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb {

std::vector<Kernel> cpu_strip_kernels();
// Conversions to Layout::CpuStrip16 of every format it has.
std::vector<Conversion> cpu_conversions();

}  // namespace plumb
