// Turns launches into records: of which rows is the caller's choice, and so is what becomes of them.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "guard/op_record.h"

namespace plumb {

struct RowRange {
  int64_t first = 0, count = 0;  // count 0: none
};

class OpRecorder final : public OpObserver {
 public:
  // `call.rows`: of the step, without padding at the end.
  using Choose = std::function<RowRange(const OpCall& call)>;
  using Take = std::function<void(OpRecord record)>;
  OpRecorder(Choose choose, Take take) : choose_(std::move(choose)), take_(std::move(take)) {}

  void begin_pass(const Paging& rows) override { rows_ = rows.rows; }
  void before(const OpCall& call, Executor& executor) override {
    OpCall seen{
        .site = call.site, .rows = real_rows(call), .kernel = call.kernel, .args = call.args, .origin = call.origin};
    const RowRange rows = OpRecord::possible(call.kernel.contract.op) && seen.rows > 0 ? choose_(seen) : RowRange{};
    if (rows.count > 0) record_.emplace(call, rows.first, rows.count, executor);
  }
  void after(const OpCall& call, Executor& executor) override {
    if (!record_) return;
    record_->finish(call, executor);
    take_(*std::exchange(record_, std::nullopt));
  }

 private:
  // Without those that a device's step is padded with at its end.
  int64_t real_rows(const OpCall& call) const {
    return call.origin.map != nullptr ? call.rows : std::clamp<int64_t>(rows_ - call.origin.first, 0, call.rows);
  }

  int64_t rows_ = 0;  // of the pass
  Choose choose_;
  Take take_;
  std::optional<OpRecord> record_{};
};

}  // namespace plumb
