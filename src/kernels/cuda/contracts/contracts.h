// Contracts of the plain CUDA kernels and the layout that all CUDA kernels read: host code that every build has, so
// that a plan for a GPU can be made where there is neither a GPU nor nvcc. The .cu files join each contract with its
// code.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb {

// The plain kernel of every op, without code: it accepts what a device can run at all.
std::vector<Kernel> cuda_contracts();
std::vector<Conversion> cuda_conversions();

namespace cuda {

// The plain kernel of an op (naive/). There is one of every op but sampling.
Contract naive_contract(Op op);

// Sums and gathers among ranks by way of the host (collectives_on_host.cpp).
Contract host_collective_contract(Op op);

// Sampling on the host by the portable CPU kernel.
const Kernel& portable_sampler();
Contract host_sampler_contract();

}  // namespace cuda
}  // namespace plumb
