#include "kernels/cuda/rows/row_kernels.h"

namespace plumb::cuda {

Contract row_contract(Op op, const char* kind) {
  Contract c;
  c.name = to_string(op) + "." + kind + ".cuda";
  c.op = op;
  c.reads = {kF32};
  c.weight_layout = Layout::CudaRowMajor;
  c.arch = Isa::CudaPortable;
  c.round_bf16 = c.norm_two_roundings = c.index_hadamard = true;
  c.deterministic = c.batch_invariant = true;
  c.sum_order = std::string(kind) + ".cuda";
  c.error_bound = {.c = 8, .unit = DType::F32, .floor = 0};
  c.preference = 20;  // docs/performance.md
  return c;
}

}  // namespace plumb::cuda
