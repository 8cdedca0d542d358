#include "rig.h"

#include <cstring>

#include "device/host_memory.h"

namespace plumb::testing {

namespace {

const Registry& registry() {
  static const Registry all = make_registry();
  return all;
}

void poison_embedding(Rig& rig, const std::vector<int32_t>& ids) {
  EncodedMatrix& table = rig.model->weights.embed.source;
  ASSERT_EQ(table.format, kBf16);
  const size_t row_bytes = static_cast<size_t>(table.k) * 2;
  const auto* bytes = static_cast<const std::byte*>(table.data);
  rig.poisoned_embedding.assign(bytes, bytes + static_cast<size_t>(table.n) * row_bytes);
  for (const int32_t id : ids) {
    const uint16_t nan = 0x7fc0;
    std::memcpy(rig.poisoned_embedding.data() + static_cast<size_t>(id) * row_bytes, &nan, sizeof nan);
  }
  table.data = rig.poisoned_embedding.data();
}

}  // namespace

RigOptions::RigOptions() = default;
RigOptions::RigOptions(const RigOptions& other) = default;
RigOptions::~RigOptions() = default;

std::unique_ptr<Rig> make_rig(const RigOptions& options) {
  auto rig = std::make_unique<Rig>();
  rig->pool = std::make_unique<ThreadPool>(options.threads);
  LoadModelOptions load{.device = detect_cpu()};
  load.plan.backend = options.backend;
  load.plan.kv = options.kv;
  load.plan.index_keys = options.index_keys;
  load.plan.deterministic = options.deterministic;
  load.plan.pages = options.pages;
  load.plan.page_tokens = options.page_tokens;
  ask_plan_for(options.engine, load.plan);
  auto model = load_model(options.folder, registry(), *rig->pool, load);
  if (!model) {
    ADD_FAILURE() << model.error().to_string();
    return nullptr;
  }
  rig->model = *std::move(model);
  const PlannedModel& planned = rig->model->planned;
  if (!options.poisoned_ids.empty()) poison_embedding(*rig, options.poisoned_ids);
  auto cache = KvCache::make(rig->model->config(), planned.with_mtp, planned.kv, planned.pages);
  auto buffers = make_buffers(rig->model->config(), planned.limits);
  auto workspace = allocate_host(planned.plan.workspace_bytes, "kernel workspace");
  if (!cache || !buffers || !workspace) {
    ADD_FAILURE() << "no memory for a tiny model";
    return nullptr;
  }
  rig->cache = std::make_unique<KvCache>(*std::move(cache));
  rig->buffers = *std::move(buffers);
  rig->workspace = *std::move(workspace);
  rig->executor = std::make_unique<Executor>(planned.plan, Stream{.pool = rig->pool.get(),
                                                                  .workspace = rig->workspace.get(),
                                                                  .workspace_bytes = planned.plan.workspace_bytes});
  const Forward forward{.config = rig->model->config(),
                        .weights = rig->model->weights,
                        .sites = planned.sites,
                        .executor = *rig->executor,
                        .cache = *rig->cache,
                        .buffers = *rig->buffers,
                        .numerics = planned.numerics,
                        .latent_norm_eps = planned.latent_norm_eps};
  EngineOptions engine_options = options.engine;
  engine_options.check_invariants = true;
  if (!engine_options.observer)
    engine_options.observer = [raw = rig.get()](const StepView& step) { raw->logits(step); };
  auto engine = Engine::start(forward, engine_options);
  if (!engine) {
    ADD_FAILURE() << engine.error().to_string();
    return nullptr;
  }
  rig->engine = *std::move(engine);
  return rig;
}

}  // namespace plumb::testing
