// Linears, MLPs and experts of decode steps on the tensor cores: see tile.cuh.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb::cuda {

void add_mma_kernels(std::vector<Kernel>& out);

}  // namespace plumb::cuda
