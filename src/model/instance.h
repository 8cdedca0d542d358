// A loaded model with all that a step needs: what the engine, `plumb logits` and tests stand on.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "device/compute_device.h"
#include "model/loaded_model.h"
#include "model/rank_link.h"

namespace plumb {

struct InstanceOptions {
  ModelPlanOptions plan{};
  LoadOptions load{};            // where to is filled in
  int cuda_device = 0;           // with backend "cuda"
  int ranks_here = 1;            // that share the memory of the machine, or of the CUDA device
  std::string unreachable{};     // DeviceInfo::unreachable, with backend "cuda"
  Communicator* comm = nullptr;  // to the other ranks that share the model, if plan.tp says that there are some
  // Called once the model is loaded, before anything runs; may change it. An error ends the opening.
  std::function<Status(LoadedModel&)> loaded{};
};

struct DetachLinks {
  void operator()(Communicator* comm) const { comm->detach_links(); }
};

// Stays where it is; members are ended in reverse order.
struct ModelInstance {
  ComputeDevice device{};
  std::unique_ptr<Communicator, DetachLinks> links{};  // what kernels have between the ranks
  std::unique_ptr<LoadedModel> model{};
  std::optional<KvCache> cache{};
  ForwardBuffersPtr buffers{};
  std::shared_ptr<std::byte> workspace{};
  std::unique_ptr<Executor> executor{};
  std::unique_ptr<RankLink> link{};  // with several ranks
  int first_expert = 0;

  const ModelConfig& config() const { return model->config(); }
  const PlannedModel& planned() const { return model->planned; }
  Forward forward();  // refers to the members
};
// `registry` and `pool` must outlive the result.
Result<std::unique_ptr<ModelInstance>> open_instance(const std::filesystem::path& folder, const Registry& registry,
                                                     ThreadPool& pool, const InstanceOptions& options);

}  // namespace plumb
