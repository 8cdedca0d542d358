// What rotary ops are handed follows from the configuration: theta and position, computed once more in double. (An op
// judged on its own inputs can't show it.)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "ops/executor.h"

namespace plumb {

class AngleWatch final : public OpObserver {
 public:
  AngleWatch(const Plan& plan, const ModelConfig& config);
  void begin_pass(const Paging& rows) override { rows_ = rows; }
  void before(const OpCall& call, Executor& executor) override;
  void after(const OpCall&, Executor&) override {}

  int64_t angles() const { return angles_; }
  // The first that is wrong, in words, and its place; empty: none.
  const std::string& problem() const { return problem_; }
  const std::string& site() const { return site_; }

 private:
  void look(const OpCall& call, const RopeArgs& args, int64_t r);

  const Plan& plan_;
  const ModelConfig& config_;
  std::vector<float> inv_freq_;
  Paging rows_{};
  std::string site_{}, problem_{};
  int64_t angles_ = 0;
};

}  // namespace plumb
