#include "kernels/reference/reference.h"

#include "kernels/reference/common.h"

namespace plumb {
namespace reference {

Contract reference_contract(Op op) {
  Contract contract{.name = to_string(op) + ".reference", .op = op};
  contract.weight = {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4};
  contract.mixed_weights = true;
  contract.reads = {kF32};
  contract.kv = {KvFormat::None, KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8Tile128};
  contract.index_key = {IndexKeyFormat::None, IndexKeyFormat::F32, IndexKeyFormat::Bf16, IndexKeyFormat::Fp8};
  contract.accumulate = DType::F64;
  contract.round_bf16 = true;
  contract.norm_two_roundings = true;
  contract.index_hadamard = true;
  contract.deterministic = true;
  contract.batch_invariant = true;
  contract.sum_order = "reference";
  contract.error_bound = {.c = 1, .unit = DType::F32};
  contract.reference = true;
  return contract;
}

}  // namespace reference

std::vector<Kernel> reference_kernels() {
  std::vector<Kernel> kernels;
  reference::add_row_kernels(kernels);
  reference::add_linear_kernels(kernels);
  reference::add_rope_kernels(kernels);
  reference::add_indexer_kernels(kernels);
  reference::add_attend_kernels(kernels);
  reference::add_expert_kernels(kernels);
  reference::add_sample_kernels(kernels);
  reference::add_collective_kernels(kernels);
  return kernels;
}

}  // namespace plumb
