// Turns launches into records: of which rows is the caller's choice, and so is what becomes of them.
#pragma once

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
  using Choose = std::function<RowRange(const OpCall& call)>;
  using Take = std::function<void(OpRecord record)>;
  OpRecorder(Choose choose, Take take) : choose_(std::move(choose)), take_(std::move(take)) {}

  void before(const OpCall& call, Executor& executor) override {
    const RowRange rows = OpRecord::possible(call.kernel.contract.op) ? choose_(call) : RowRange{};
    if (rows.count > 0) record_.emplace(call, rows.first, rows.count, executor);
  }
  void after(const OpCall& call, Executor& executor) override {
    if (!record_) return;
    record_->finish(call, executor);
    take_(*std::exchange(record_, std::nullopt));
  }

 private:
  Choose choose_;
  Take take_;
  std::optional<OpRecord> record_{};
};

}  // namespace plumb
