#include "kernels/cuda/contracts/contracts.h"

namespace plumb::cuda {
namespace {

// Call.n is the width of the hidden layer, Call.topk the experts of a row.
size_t mlp_workspace(const Call& c) { return static_cast<size_t>(c.m_hi * c.n) * 4; }
size_t moe_workspace(const Call& c) { return static_cast<size_t>(c.m_hi * c.n * c.topk) * 4; }
size_t router_workspace(const Call& c) { return static_cast<size_t>(c.m_hi * c.n) * 4; }

constexpr int kTopkMax = 16384;  // attention keeps 8 bytes of shared memory for a selected position

}  // namespace

Contract naive_contract(Op op) {
  Contract c;
  c.name = to_string(op) + ".naive.cuda";
  c.op = op;
  if (op == Op::Embed || op == Op::Linear || op == Op::Router || op == Op::Mlp || op == Op::Moe || op == Op::MlaAttend)
    c.weight = {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4};
  if (op == Op::KvWrite || op == Op::MlaAttend) c.kv = {KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8Tile128};
  if (op == Op::IndexQuery || op == Op::IndexKeyWrite || op == Op::IndexerLogits)
    c.index_key = {IndexKeyFormat::F32, IndexKeyFormat::Bf16, IndexKeyFormat::Fp8};
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
  // Gate, up and their product are rounded to f32 in between.
  if (op == Op::Mlp || op == Op::Moe) c.error_bound.c = 4;
  if (op == Op::MlaAttend) c.limits.topk_max = kTopkMax;
  c.workspace = op == Op::Mlp      ? mlp_workspace
                : op == Op::Moe    ? moe_workspace
                : op == Op::Router ? router_workspace
                                   : nullptr;
  c.preference = -100;  // the witness, not for serving
  return c;
}

}  // namespace plumb::cuda
