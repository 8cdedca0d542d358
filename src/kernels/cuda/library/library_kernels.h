// Kernels of CUDA's own libraries: candidates of their own, and witnesses that share no code with ours.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb::cuda {

// None where the library is not installed.
void add_library_kernels(std::vector<Kernel>& out);

}  // namespace plumb::cuda
