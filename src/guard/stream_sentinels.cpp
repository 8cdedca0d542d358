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

// A value that is not finite in a row of what such an op reads is one in the row that it writes.
bool passes_on(Op op) {
  return op == Op::Linear || op == Op::RmsNorm || op == Op::AddRmsNorm || op == Op::Mlp || op == Op::Moe ||
         op == Op::MlaAttend;
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
  written_.clear();
  looked_in_ = -1;
  cleared_ = false;
  ops_ = 0;
}

// What was written and not looked at yet must be, before something else is written there; but once a layer is enough
// where what has read it shows it too. What is changed in place stays as bad as it was.
void StreamSentinels::before(const OpCall& call, Executor& executor) {
  if (left_out(call)) return;  // the sampler comes after the pass, whose marks are still to be read
  if (!cleared_) {
    executor.memory().clear(report_.data, static_cast<size_t>(report_.bytes()), executor.stream());
    cleared_ = true;
  }
  AnyArgs args = any_args(call.kernel.contract.op, call.args);
  const auto pending = [&](const Tensor& tensor) {
    return std::ranges::find(written_, tensor.data,
                             [](const Written& w) { return static_cast<const void*>(w.piece.data); });
  };
  const int layer = executor.plan().sites[static_cast<size_t>(call.site)].decl.layer;
  bool lost = false;
  for_tensors(args, [&](const char*, const Tensor& tensor, Role role) {
    if (role == Role::In) return;
    bool read = role == Role::InOut;
    for_tensors(args,
                [&](const char*, const Tensor& other, Role r) { read |= r == Role::In && other.data == tensor.data; });
    const auto piece = pending(tensor);
    if (piece == written_.end()) return;
    if (read || (piece->passed_on && looked_in_ == layer))
      written_.erase(piece);
    else
      lost = true;
  });
  if (!lost) return;
  look(executor);
  looked_in_ = layer;
}

void StreamSentinels::after(const OpCall& call, Executor& executor) {
  if (left_out(call)) return;
  AnyArgs args = any_args(call.kernel.contract.op, call.args);
  const int32_t mark = mark_of(ops_++, call.site);
  for_tensors(args, [&](const char*, const Tensor& tensor, Role role) {
    if (role != Role::In) return;
    for (Written& w : written_)
      if (w.piece.data == tensor.data) w.passed_on |= passes_on(call.kernel.contract.op);
  });
  for_tensors(args, [&](const char*, const Tensor& tensor, Role role) {
    if (role == Role::In || tensor.dtype != DType::F32) return;
    if (written_.size() == kScanPieces) look(executor);
    written_.push_back({.piece = {.data = tensor.f32(),
                                  .ld = tensor.ld,
                                  .rows = static_cast<int32_t>(tensor.dim(0)),
                                  .columns = static_cast<int32_t>(tensor.dim(1)),
                                  .first_row = call.origin.first,
                                  .mark = mark,
                                  .minus_infinity = call.kernel.contract.op == Op::IndexerLogits}});
  });
}

void StreamSentinels::look(Executor& executor) {
  std::vector<ScanPiece> pieces;
  for (const Written& w : written_) pieces.push_back(w.piece);
  if (!pieces.empty())
    executor.memory().scan(pieces, report_.i32() + 1, static_cast<int>(report_.ld), executor.stream());
  written_.clear();
}

}  // namespace plumb
