#include "model/instance.h"

namespace plumb {

Forward ModelInstance::forward() {
  return {.config = config(),
          .weights = model->weights,
          .sites = planned().sites,
          .executor = *executor,
          .cache = *cache,
          .buffers = *buffers,
          .numerics = planned().numerics,
          .latent_norm_eps = planned().latent_norm_eps};
}

Result<std::unique_ptr<ModelInstance>> open_instance(const std::filesystem::path& folder, const Registry& registry,
                                                     ThreadPool& pool, const InstanceOptions& options) {
  auto out = std::make_unique<ModelInstance>();
  PLUMB_TRY(out->device, open_device(options.plan.backend, options.cuda_device, pool));
  const Memory& memory = out->device.memory;
  LoadModelOptions load{.device = out->device.info, .plan = options.plan, .load = options.load};
  load.load.memory = memory;
  load.load.stream = &out->device.stream;
  PLUMB_TRY(out->model, load_model(folder, registry, pool, load));
  if (options.loaded) PLUMB_TRY_STATUS(options.loaded(*out->model));
  const PlannedModel& planned = out->planned();
  PLUMB_TRY(out->cache, KvCache::make(out->config(), planned.with_mtp, planned.kv, planned.pages, memory));
  PLUMB_TRY(out->buffers, make_buffers(out->config(), planned.limits, memory));
  PLUMB_TRY(out->workspace, memory.allocate(planned.plan.workspace_bytes, "kernel workspace"));
  out->device.stream.workspace = out->workspace.get();
  out->device.stream.workspace_bytes = planned.plan.workspace_bytes;
  out->executor = std::make_unique<Executor>(planned.plan, out->device.stream, memory);
  return out;
}

}  // namespace plumb
