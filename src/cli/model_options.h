// The options that every command which plans a model has in common, and what they become.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/cli.h"
#include "model/loaded_model.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace plumb {

struct ModelOptions {
  std::string model{};
  ModelPlanOptions plan{};
  std::vector<std::string> kernels{};  // place=name
  int threads = 0;                     // 0: all cores
  std::vector<FlagLine> fulfilled{};   // of other servers, asking for what is so anyway
  std::vector<std::string> faults{};   // to plant

  // How an option got its value: "flag", "PLUMB_KV" or "default". Filled when the command runs.
  std::vector<CLI::Option*> options{};
};

// The device that --device and --tp name: "cpu", "cuda" or "cuda:N" of this machine, a profile of one that is not here,
// or a JSON file with a profile; a list names one for each rank. Sets options.tp where only a list says how many.
Result<DeviceInfo> find_planned_device(const std::string& list, ModelPlanOptions& options);

// Adds `model` and the plan's options to a command.
void add_model_options(CLI::App& command, ModelOptions& options);
// Fills plan.pinned and plan.sources from what was parsed.
Status finish_model_options(ModelOptions& options, const CliContext& context);

// Progress of loading on standard error: a bar on a terminal, else one line a phase.
class LoadBar {
 public:
  LoadBar();
  void update(const LoadProgress& progress);
  void finish();

 private:
  bool terminal_ = false;
  std::string phase_{};
  int64_t begin_ns_ = 0;  // of the phase
  int64_t shown_ns_ = 0;
  int64_t total_bytes_ = 0;
};

}  // namespace plumb
