// Ops among ranks on CUDA devices.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb::cuda {

void add_host_collectives(std::vector<Kernel>& out);
void add_peer_sums(std::vector<Kernel>& out);
void add_peer_gather(std::vector<Kernel>& out);
void add_nccl(std::vector<Kernel>& out);

}  // namespace plumb::cuda
