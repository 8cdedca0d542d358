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

// Sums and gathers among ranks (ranks/): by way of the host, through memory that devices reach of each other, by NCCL.
Contract host_collective_contract(Op op);
Contract one_shot_contract();
Contract two_shot_contract();
Contract peer_gather_contract();
Contract nccl_contract(Op op);
inline constexpr int kMostPeers = 8;
inline constexpr int64_t kOneShotBytes = int64_t{256} << 10;  // of the largest message that is sent whole to everyone
inline constexpr int64_t kPieceBytes = int64_t{4} << 20;      // larger ones go in pieces of this

// Sampling on the host by the portable CPU kernel.
const Kernel& portable_sampler();
Contract host_sampler_contract();

}  // namespace cuda
}  // namespace plumb
