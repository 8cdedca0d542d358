#include "model/instance.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/collectives.h"

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
  if (joined == planned) return Ok{};
  return Error{Code::Unsupported,
               "--tp " + std::to_string(planned) + " cannot be honoured here",
               joined == 1 ? "this command runs one rank" : std::to_string(joined) + " ranks have joined",
               {"--tp " + std::to_string(joined), "plumb serve and plumb logits, which run several"}};
}

// What the plan's kernels need between the ranks. Other ranks' kernels would wait for others: that is found first.
Status connect_kernels(const Plan& plan, Communicator& comm, bool& by_host) {
  std::vector<const Kernel*> kernels;
  std::string mine;
  for (const Site& site : plan.sites) {
    if (site.decl.call.ranks == 1) continue;
    for (const Choice& choice : site.choices) {
      if (std::ranges::find(kernels, choice.kernel) != kernels.end()) continue;
      kernels.push_back(choice.kernel);
      mine += " " + choice.kernel->contract.name;
    }
  }
  PLUMB_TRY(const std::vector<std::string> all, all_gather_text(comm, mine));
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      return Error{
          Code::Unsupported,
          "the ranks do not have the same plan",
          comm.name_of(static_cast<int>(rank)) + " exchanges by" + all[rank] + ", " + comm.name_of(0) + " by" + all[0],
          {"the same program, model and flags on every rank"}};
  for (const Kernel* kernel : kernels) {
    by_host |= kernel->connect == nullptr;
    if (kernel->connect != nullptr) PLUMB_TRY_STATUS(kernel->connect(comm));
  }
  return Ok{};
}

}  // namespace

Result<std::unique_ptr<ModelInstance>> open_instance(const std::filesystem::path& folder, const Registry& registry,
                                                     ThreadPool& pool, const InstanceOptions& options) {
  PLUMB_TRY_STATUS(check_comm(options));
  auto out = std::make_unique<ModelInstance>();
  PLUMB_TRY(out->device, open_device(options.plan.backend, options.cuda_device, pool));
  out->device.info.memory_bytes /= options.ranks_here;
  if (out->device.info.is_gpu()) {
    out->device.info.ranks = options.ranks_here;
    out->device.info.unreachable = options.unreachable;
  }
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
  out->links.reset(options.comm);
  bool by_host = false;
  if (memory.where != Where::Host) PLUMB_TRY_STATUS(connect_kernels(planned.plan, *options.comm, by_host));
  if (by_host) {
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
