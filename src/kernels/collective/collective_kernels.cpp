#include "kernels/collective/collective_kernels.h"

#include <algorithm>

#include "base/check.h"
#include "comm/collectives.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

// x without gaps: x itself, or a copy in the workspace.
std::span<float> packed(const Tensor& x, const Stream& stream) {
  const auto count = static_cast<size_t>(x.elements());
  if (x.contiguous()) return {x.f32(), count};
  PLUMB_CHECK(count * sizeof(float) <= stream.workspace_bytes, "workspace of a collective");
  auto* const copy = reinterpret_cast<float*>(stream.workspace);
  for (int64_t t = 0; t < x.dim(0); ++t) std::copy_n(x.row_f32(t), x.dim(1), copy + t * x.dim(1));
  return {copy, count};
}

void all_reduce_rows(const AllReduceArgs& args, Stream& stream) {
  const std::span<float> values = packed(args.x, stream);
  if (!all_reduce(*args.comm, values)) return;
  if (args.numerics.round_bf16) std::transform(values.begin(), values.end(), values.begin(), round_bf16);
  if (values.data() == args.x.f32()) return;
  for (int64_t t = 0; t < args.x.dim(0); ++t)
    std::copy_n(values.data() + t * args.x.dim(1), args.x.dim(1), args.x.row_f32(t));
}

// The communicator keeps a failure.
void gather_shares(const GatherColumnsArgs& args, Stream& stream) {
  const int64_t rows = args.x.dim(0), n = args.y.dim(1);
  if (args.comm->rank() != 0) {
    static_cast<void>(gather_columns(*args.comm, packed(args.x, stream), rows, n, n, args.share));
    return;
  }
  for (int64_t t = 0; t < rows; ++t) std::copy_n(args.x.row_f32(t), args.x.dim(1), args.y.row_f32(t));
  static_cast<void>(gather_columns(*args.comm, {args.y.f32(), static_cast<size_t>((rows - 1) * args.y.ld + n)}, rows, n,
                                   args.y.ld, args.share));
}

size_t packed_bytes(const Call& call) { return static_cast<size_t>(call.m_hi * call.k) * sizeof(float); }

Contract contract_of(Op op, const char* order) {
  Contract contract{.name = to_string(op) + "." + order + ".generic", .op = op};
  contract.reads = {kF32};
  contract.round_bf16 = true;
  contract.norm_two_roundings = true;  // there is nothing to round, or to rotate
  contract.index_hadamard = true;
  contract.deterministic = true;
  contract.batch_invariant = true;
  contract.sum_order = order;
  contract.workspace = packed_bytes;
  contract.error_bound = {.c = 1, .unit = DType::F32};
  contract.preference = 10;  // the only one so far
  return contract;
}

}  // namespace

std::vector<Kernel> collective_kernels() {
  return {make_kernel<AllReduceArgs, all_reduce_rows>(contract_of(Op::AllReduce, "rank_order")),
          make_kernel<GatherColumnsArgs, gather_shares>(contract_of(Op::GatherColumns, "copies"))};
}

}  // namespace plumb
