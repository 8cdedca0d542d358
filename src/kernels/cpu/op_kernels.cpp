#include "kernels/cpu/op_kernels.h"

namespace plumb {
namespace cpu {

Contract op_contract(Op op, const char* kind, Isa isa) {
  Contract contract{.name = to_string(op) + "." + kind + "." + to_string(isa), .op = op};
  contract.reads = {kF32};
  contract.accumulate = DType::F32;
  contract.arch = isa;
  contract.round_bf16 = true;
  contract.norm_two_roundings = true;
  contract.index_hadamard = true;
  contract.deterministic = true;
  contract.batch_invariant = true;
  contract.sum_order = std::string(kind) + "." + to_string(isa);
  // One round-off for each term of a sum is counted by the accumulator; c is for exp, divisions and the like.
  contract.error_bound = {.c = 8, .unit = DType::F32};
  contract.preference = 10;
  return contract;
}

}  // namespace cpu

std::vector<Kernel> cpu_op_kernels() {
  std::vector<Kernel> kernels;
  cpu::add_norm_kernels(kernels);
  cpu::add_cache_kernels(kernels);
  cpu::add_indexer_kernels(kernels);
  cpu::add_topk_kernels(kernels);
  cpu::add_attend_kernels(kernels);
  cpu::add_sample_kernels(kernels);
  return kernels;
}

}  // namespace plumb
