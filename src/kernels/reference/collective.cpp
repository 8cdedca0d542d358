// Ops among ranks: everything is sent to everyone, sums are float64 in order of rank.
#include <algorithm>

#include "comm/collectives.h"
#include "kernels/reference/common.h"

namespace plumb::reference {
namespace {

// All ranks' rows of `width` columns, one rank after the other; empty after a failure.
std::vector<float> from_all(Communicator& comm, const Tensor& x, int64_t width) {
  std::vector<float> mine(static_cast<size_t>(x.dim(0) * width), 0.0f);
  for (int64_t t = 0; t < x.dim(0); ++t) std::copy_n(x.row_f32(t), x.dim(1), mine.data() + t * width);
  std::vector<float> all(mine.size() * static_cast<size_t>(comm.size()));
  if (!all_gather(comm, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)))) return {};
  return all;
}

void all_reduce_rows(const AllReduceArgs& args, Stream&) {
  const int64_t rows = args.x.dim(0), n = args.x.dim(1);
  const std::vector<float> all = from_all(*args.comm, args.x, n);
  if (all.empty()) return;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t r = 0; r < args.comm->size(); ++r)
        sum += static_cast<double>(all[static_cast<size_t>((r * rows + t) * n + i)]);
      args.x.row_f32(t)[i] = round_output(sum, args.numerics);
    }
}

void gather_columns(const GatherColumnsArgs& args, Stream&) {
  const int64_t rows = args.x.dim(0), n = args.y.dim(1);
  const std::vector<float> all = from_all(*args.comm, args.x, args.share);
  if (all.empty() || args.comm->rank() != 0) return;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < n; ++i)
      args.y.row_f32(t)[i] = all[static_cast<size_t>((i / args.share * rows + t) * args.share + i % args.share)];
}

}  // namespace

void add_collective_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<AllReduceArgs, all_reduce_rows>(reference_contract(Op::AllReduce)));
  out.push_back(make_kernel<GatherColumnsArgs, gather_columns>(reference_contract(Op::GatherColumns)));
}

}  // namespace plumb::reference
