// Kernels on the tensor cores.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb::cuda {

void add_mma_kernels(std::vector<Kernel>& out);     // linear, MLP, experts
void add_attend_kernels(std::vector<Kernel>& out);  // sparse MLA
void add_indexer_kernels(std::vector<Kernel>& out);
void add_fp8_indexer_kernels(std::vector<Kernel>& out);  // index logits

}  // namespace plumb::cuda
