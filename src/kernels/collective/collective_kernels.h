#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb {

std::vector<Kernel> collective_kernels();

}  // namespace plumb
