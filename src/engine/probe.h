// An engine over the model to be served, for the checks of a start: its logits can be seen.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/self_check.h"

namespace plumb {

using ProbeLogits = std::map<int, std::vector<float>>;  // by position

class Probe {
 public:
  // The server's options without prefix cache, drafts, captures and shadow, then as `change` wants them. What it has
  // not written yet, activations and pages, is NaN. Null, and `problem` says why, when the engine refuses.
  static std::unique_ptr<Probe> start(const SelfCheckInput& input, const std::function<void(EngineOptions&)>& change,
                                      std::string& problem);
  // Zeroes what probes have written, as after loading.
  static void clean_up(const SelfCheckInput& input);

  Engine& engine() { return *engine_; }
  ProbeLogits logits_of(const std::string& request_id);

 private:
  explicit Probe(Executor& executor) : executor_(&executor) {}
  void see(const StepView& step);

  Executor* executor_;
  std::mutex mutex_{};
  std::map<std::string, ProbeLogits> logits_{};
  std::unique_ptr<Engine> engine_{};  // last: ends first
};

}  // namespace plumb
