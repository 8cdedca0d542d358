#include "model/loaded_model.h"

namespace plumb {

Result<OpenedModel> open_model(const std::filesystem::path& folder) {
  OpenedModel model;
  PLUMB_TRY(model.config, read_model_config(folder));
  PLUMB_TRY(model.quant, read_quant_config(folder));
  PLUMB_TRY(Checkpoint checkpoint, Checkpoint::open(folder));
  model.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  PLUMB_TRY(model.map, map_weights(model.config, *model.checkpoint, model.quant));
  return model;
}

Result<PlannedModel> plan_opened(OpenedModel& model, const Registry& registry, const DeviceInfo& device,
                                 const ModelPlanOptions& options) {
  PLUMB_TRY_STATUS(choose_mtp(options.mtp, model.map));
  PLUMB_TRY(PlannedModel planned,
            plan_model({.config = model.config,
                        .map = model.map,
                        .quant = model.quant,
                        .registry = registry,
                        .device = device,
                        .checkpoint_bytes = static_cast<int64_t>(model.checkpoint->total_bytes())},
                       options));
  for (const std::string& warning : model.checkpoint->warnings())
    planned.plan.warnings.push_back({"harmless here", warning});
  return planned;
}

Result<std::unique_ptr<LoadedModel>> load_model(const std::filesystem::path& folder, const Registry& registry,
                                                ThreadPool& pool, const LoadModelOptions& options) {
  auto model = std::make_unique<LoadedModel>();
  PLUMB_TRY(model->opened, open_model(folder));
  PLUMB_TRY(model->planned, plan_opened(model->opened, registry, options.device, options.plan));
  model->ranks = options.plan.tp;
  model->rank = options.rank;
  const WeightMap share = share_of(model->opened.map, ranks_of(options.plan), options.rank);
  PLUMB_TRY(model->weights, ModelWeights::load({.config = model->opened.config,
                                                .map = share,
                                                .plan = model->planned.plan,
                                                .sites = model->planned.sites,
                                                .registry = registry},
                                               pool, options.load));
  return model;
}

}  // namespace plumb
