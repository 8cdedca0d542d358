// A plain CUDA kernel for every op: one output a thread, float64 sums, no tricks. The witness at full size, where the
// scalar reference takes minutes: verification, shadow and check compare with it. Proven against the reference by the
// contract tests.
#pragma once

#include <vector>

#include "kernels/cuda/contracts/contracts.h"

namespace plumb::cuda {

void add_naive_row_kernels(std::vector<Kernel>& out);
void add_naive_linear_kernels(std::vector<Kernel>& out);
void add_naive_cache_kernels(std::vector<Kernel>& out);
void add_naive_attend_kernels(std::vector<Kernel>& out);
void add_naive_select_kernels(std::vector<Kernel>& out);

}  // namespace plumb::cuda
