// A checkpoint from folder to weights in memory, the same for every command.
#pragma once

#include <filesystem>
#include <memory>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quant_config.h"
#include "model/model_plan.h"

namespace plumb {

class ThreadPool;

// Headers and configuration: all that a plan needs.
struct OpenedModel {
  ModelConfig config{};
  QuantConfig quant{};
  std::unique_ptr<Checkpoint> checkpoint{};
  WeightMap map{};
};
Result<OpenedModel> open_model(const std::filesystem::path& folder);

// Plans an opened model for a device; drops the MTP layer from its map when the options say so.
Result<PlannedModel> plan_opened(OpenedModel& model, const Registry& registry, const DeviceInfo& device,
                                 const ModelPlanOptions& options);

// Stays where it is: the plan, weights and everything that runs refer to it.
struct LoadedModel {
  OpenedModel opened{};
  PlannedModel planned{};
  ModelWeights weights{};
  int ranks = 1, rank = 0;  // of which this is one's share

  const ModelConfig& config() const { return opened.config; }
};
struct LoadModelOptions {
  DeviceInfo device{};
  ModelPlanOptions plan{};
  int rank = 0;  // of plan.tp
  LoadOptions load{};
};
// `registry` must outlive the result.
Result<std::unique_ptr<LoadedModel>> load_model(const std::filesystem::path& folder, const Registry& registry,
                                                ThreadPool& pool, const LoadModelOptions& options);

}  // namespace plumb
