// Every CUDA kernel of this build: the contracts of contracts/contracts.h with their code.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb {

namespace cuda {
Kernel sample_on_host();
}  // namespace cuda

std::vector<Kernel> cuda_kernels();

}  // namespace plumb
