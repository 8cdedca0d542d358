// Where a step's time goes: each launch once more, many times in a row.
#pragma once

#include <string>
#include <vector>

#include "ops/executor.h"

namespace plumb {

// As an observer of one step. Operands are warm and values end up as nobody's: only the times mean something. What
// exchanges rows with other ranks or gives its results to the host is not timed.
class OpTimes final : public OpObserver {
 public:
  void before(const OpCall&, Executor&) override {}
  void after(const OpCall& call, Executor& executor) override;
  // A line a place, those of all layers together: kernel, launches, microseconds of one, and of all.
  std::string table() const;

 private:
  struct Line {
    std::string place{}, kernel{};
    std::vector<double> seconds{};
  };
  std::vector<Line> lines_{};
};

}  // namespace plumb
