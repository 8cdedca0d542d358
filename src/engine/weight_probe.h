// Launches beside those of a running check, on inputs that single out parts of the weights: real activations add up so
// many products that a scale read wrong, or an expert taken for another, can stay within the bound of the sum.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "ops/executor.h"

namespace plumb {

class WeightProbe final : public OpObserver {
 public:
  // After each of the first `launches` launches of a place that `wanted` names there is another of as many rows, by the
  // same executor, with outputs of its own. Of a linear each row keeps 16 columns of its input, other ones each time;
  // of a router it is the weights of one expert; of experts it is sent to the next ones in turn.
  WeightProbe(int launches, std::function<bool(SiteId)> wanted) : launches_(launches), wanted_(std::move(wanted)) {}

  bool running() const { return running_; }  // the launch under way is the probe's own
  void before(const OpCall&, Executor&) override {}
  void after(const OpCall& call, Executor& executor) override;

 private:
  struct Turn {
    int launches = 0;
    int64_t next = 0;  // block of columns, or expert
  };
  const int launches_;
  const std::function<bool(SiteId)> wanted_;
  std::map<SiteId, Turn> turns_{};
  bool running_ = false;
};

}  // namespace plumb
