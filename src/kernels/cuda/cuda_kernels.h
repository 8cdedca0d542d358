// Every CUDA kernel of this build, and the arrangements of weights they read.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb {

namespace cuda {
Kernel sample_on_host();
}

std::vector<Kernel> cuda_kernels();
std::vector<Conversion> cuda_conversions();

}  // namespace plumb
