#include "guard/stream_sentinels.h"

#include <algorithm>

#include "base/check.h"

namespace plumb {
namespace {

// A mark holds the place, and above it how early in the pass its op ran: of a row the largest mark is kept.
constexpr int kSiteBits = 16;
constexpr int kMostOps = 0x7fff;

int32_t mark_of(int op, SiteId site) {
  PLUMB_CHECK(site < 1 << kSiteBits, "the plan has more places than a mark can name");
  return (kMostOps - std::min(op, kMostOps - 1)) << kSiteBits | site;
}

// Rows of the logits are none of the step; the sampler looks at them. The others write no numbers.
bool left_out(const OpCall& call) {
  const Op op = call.kernel.contract.op;
  return call.origin.map != nullptr || op == Op::Sample || op == Op::TopK || op == Op::FiniteRows || op == Op::DraftSet;
}

}  // namespace

bool StreamSentinels::note(const Plan& plan, const Tensor& report) {
  bool any = false;
  for (int64_t row = 0; row < report.dim(0); ++row) {
    const int32_t mark = report.row_i32(row)[1];
    if (mark > 0) any |= table_.add(static_cast<int32_t>(row), mark & ((1 << kSiteBits) - 1), plan, report.dim(0));
  }
  return any;
}

void StreamSentinels::begin_pass(const Paging& rows) {
  table_.begin_pass(rows);
  pieces_.clear();
  cleared_ = false;
  ops_ = 0;
}

// What was written and not looked at yet must be, before something else is written there. What is changed in place
// stays as bad as it was.
void StreamSentinels::before(const OpCall& call, Executor& executor) {
  if (left_out(call)) return;  // the sampler comes after the pass, whose marks are still to be read
  if (!cleared_) {
    executor.memory().clear(report_.data, static_cast<size_t>(report_.bytes()), executor.stream());
    cleared_ = true;
  }
  AnyArgs args = any_args(call.kernel.contract.op, call.args);
  const auto pending = [&](const Tensor& tensor) {
    return std::ranges::find(pieces_, tensor.data,
                             [](const ScanPiece& piece) { return static_cast<const void*>(piece.data); });
  };
  bool lost = false;
  for_tensors(args, [&](const char*, const Tensor& tensor, Role role) {
    if (role == Role::In) return;
    bool read = role == Role::InOut;
    for_tensors(args,
                [&](const char*, const Tensor& other, Role r) { read |= r == Role::In && other.data == tensor.data; });
    const auto piece = pending(tensor);
    if (piece == pieces_.end()) return;
    if (read)
      pieces_.erase(piece);
    else
      lost = true;
  });
  if (lost) look(executor);
}

void StreamSentinels::after(const OpCall& call, Executor& executor) {
  if (left_out(call)) return;
  AnyArgs args = any_args(call.kernel.contract.op, call.args);
  const int32_t mark = mark_of(ops_++, call.site);
  for_tensors(args, [&](const char*, const Tensor& tensor, Role role) {
    if (role == Role::In || tensor.dtype != DType::F32) return;
    if (pieces_.size() == kScanPieces) look(executor);
    pieces_.push_back({.data = tensor.f32(),
                       .ld = tensor.ld,
                       .rows = static_cast<int32_t>(tensor.dim(0)),
                       .columns = static_cast<int32_t>(tensor.dim(1)),
                       .first_row = call.origin.first,
                       .mark = mark,
                       .minus_infinity = call.kernel.contract.op == Op::IndexerLogits});
  });
}

void StreamSentinels::look(Executor& executor) {
  if (!pieces_.empty())
    executor.memory().scan(pieces_, report_.i32() + 1, static_cast<int>(report_.ld), executor.stream());
  pieces_.clear();
}

}  // namespace plumb
