#include "rig.h"

#include <cstring>

#include "device/cuda_device.h"

namespace plumb::testing {

namespace {

// Where the embedding is read: in the file, which is copied, or on the device.
void poison_embedding(Rig& rig, const std::vector<int32_t>& ids) {
  Weight& embed = rig.instance->model->weights.embed;
  ASSERT_EQ(embed.format(), kBf16);
  const size_t row_bytes = static_cast<size_t>(embed.k()) * 2;
  const uint16_t nan = 0x7fc0;
  const ComputeDevice& device = rig.instance->device;
  if (device.memory.where != Where::Host) {
    ASSERT_EQ(embed.layout, Layout::CudaRowMajor);
    for (const int32_t id : ids)
      device.memory.upload(const_cast<std::byte*>(embed.prepared) + static_cast<size_t>(id) * row_bytes, &nan,
                           sizeof nan, rig.executor().stream());
    device.memory.synchronise(rig.executor().stream());
    return;
  }
  const auto* bytes = static_cast<const std::byte*>(embed.source.data);
  rig.poisoned_embedding.assign(bytes, bytes + static_cast<size_t>(embed.n()) * row_bytes);
  for (const int32_t id : ids)
    std::memcpy(rig.poisoned_embedding.data() + static_cast<size_t>(id) * row_bytes, &nan, sizeof nan);
  embed.source.data = rig.poisoned_embedding.data();
}

}  // namespace

const Registry& rig_registry() {
  static const Registry all = make_registry();
  return all;
}

void OnBackend::SetUp() {
  if (GetParam() == std::string("cuda")) {
    const Result<CudaInfo> device = find_cuda(0);
    if (!device) GTEST_SKIP() << device.error().to_string();
  }
  current_ = GetParam();
}

RigOptions::RigOptions() = default;
RigOptions::RigOptions(const RigOptions& other) = default;
RigOptions::~RigOptions() = default;

std::unique_ptr<Rig> make_rig(const RigOptions& options) {
  auto rig = std::make_unique<Rig>();
  rig->pool = std::make_unique<ThreadPool>(options.threads);
  InstanceOptions load;
  load.plan.backend = options.backend;
  load.plan.kv = options.kv;
  load.plan.index_keys = options.index_keys;
  load.plan.activations = options.activations;
  load.plan.deterministic = options.deterministic;
  load.plan.pages = options.pages;
  load.plan.page_tokens = options.page_tokens;
  ask_plan_for(options.engine, load.plan);
  auto instance = open_instance(options.folder, rig_registry(), *rig->pool, load);
  if (!instance) {
    ADD_FAILURE() << instance.error().to_string();
    return nullptr;
  }
  rig->instance = *std::move(instance);
  if (!options.poisoned_ids.empty()) poison_embedding(*rig, options.poisoned_ids);
  EngineOptions engine_options = options.engine;
  engine_options.check_invariants = true;
  if (!engine_options.observer)
    engine_options.observer = [raw = rig.get()](const StepView& step) {
      std::vector<std::byte> storage;
      raw->logits(step, raw->executor().to_host(step.output.logits, storage));
    };
  auto engine = Engine::start(rig->instance->forward(), engine_options);
  if (!engine) {
    ADD_FAILURE() << engine.error().to_string();
    return nullptr;
  }
  rig->engine = *std::move(engine);
  return rig;
}

}  // namespace plumb::testing
