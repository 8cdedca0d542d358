#include "model/instance.h"

#include <algorithm>
#include <utility>

namespace plumb {

Forward ModelInstance::forward() {
  return {.config = config(),
          .weights = model->weights,
          .sites = planned().sites,
          .executor = *executor,
          .cache = *cache,
          .buffers = *buffers,
          .numerics = planned().numerics,
          .latent_norm_eps = planned().latent_norm_eps,
          .link = link.get(),
          .first_expert = first_expert};
}

namespace {

Status check_comm(const InstanceOptions& options) {
  const int joined = options.comm == nullptr ? 1 : options.comm->size();
  const int planned = options.plan.tp;
  if (options.plan.ep && options.plan.backend == "cuda")
    return Error{Code::Unsupported,
                 "--expert-parallel cannot be honoured on GPUs",
                 "their kernels take all experts of a layer, or slices of all, not some of them yet",
                 {"--tp " + std::to_string(planned) + " alone, which slices each expert", "--backend cpu"}};
  if (joined == planned) return Ok{};
  return Error{Code::Unsupported,
               "--tp " + std::to_string(planned) + " cannot be honoured here",
               joined == 1 ? "this command runs one rank" : std::to_string(joined) + " ranks have joined",
               {"--tp " + std::to_string(joined), "plumb serve and plumb logits, which run several"}};
}

}  // namespace

Result<std::unique_ptr<ModelInstance>> open_instance(const std::filesystem::path& folder, const Registry& registry,
                                                     ThreadPool& pool, const InstanceOptions& options) {
  PLUMB_TRY_STATUS(check_comm(options));
  auto out = std::make_unique<ModelInstance>();
  PLUMB_TRY(out->device, open_device(options.plan.backend, options.cuda_device, pool));
  out->device.info.memory_bytes /= options.ranks_here;
  const Memory& memory = out->device.memory;
  LoadModelOptions load{.device = out->device.info, .plan = options.plan, .load = options.load};
  if (options.comm != nullptr) load.rank = options.comm->rank();
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
  if (options.comm == nullptr) return out;
  if (memory.where != Where::Host) {
    // The largest thing that ranks exchange in a step: hidden rows, or logits on rank 0.
    const ForwardLimits& limits = planned.limits;
    const size_t bytes =
        sizeof(float) * static_cast<size_t>(std::max(int64_t{limits.rows} * out->config().hidden_size,
                                                     int64_t{limits.logit_rows} * out->config().vocab_size));
    PLUMB_TRY(std::shared_ptr<std::byte> staging, memory.allocate_staging(bytes, "what ranks exchange"));
    options.comm->set_staging(std::move(staging), bytes);
  }
  out->first_expert = first_expert_of(out->config(), ranks_of(options.plan), options.comm->rank());
  out->link = std::make_unique<RankLink>(*options.comm, *out->executor);
  return out;
}

}  // namespace plumb
