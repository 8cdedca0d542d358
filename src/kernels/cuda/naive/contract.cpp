#include "kernels/cuda/naive/naive.h"

namespace plumb::cuda {

Contract naive_contract(Op op) {
  Contract c;
  c.name = to_string(op) + ".naive.cuda";
  c.op = op;
  c.weight_layout = Layout::CudaRowMajor;
  c.accumulate = DType::F64;
  c.arch = Isa::CudaPortable;
  c.round_bf16 = true;
  c.norm_two_roundings = true;
  c.index_hadamard = true;
  c.deterministic = true;
  c.batch_invariant = true;
  c.sum_order = "naive.k";
  c.error_bound = {
      .c = 0x1p-20, .unit = DType::F32, .floor = 0};  // float64 sums: only the one rounding at the output is left
  c.preference = -100;                                // the witness, not for serving
  return c;
}

}  // namespace plumb::cuda
