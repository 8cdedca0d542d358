// Kernels of ops that work on a row alone, or choose from it.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb::cuda {

// "op.kind.cuda": f32 in and out, the same bits whatever the batch.
Contract row_contract(Op op, const char* kind);
void add_norm_kernels(std::vector<Kernel>& out);
void add_cache_write_kernels(std::vector<Kernel>& out);
void add_single_kernels(std::vector<Kernel>& out);
void add_topk_kernels(std::vector<Kernel>& out);
void add_sample_kernels(std::vector<Kernel>& out);
void add_router_kernels(std::vector<Kernel>& out);

}  // namespace plumb::cuda
