// A real engine over a small checkpoint with reference kernels, whose rows do not depend on the batch by one bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "model/host_memory.h"
#include "model/loaded_model.h"
#include "support/paths.h"

namespace plumb::testing {

// Logits of every position a request was asked for, by request id. Filled by the engine thread.
class LogitsRecorder {
 public:
  using Rows = std::map<int, std::vector<float>>;  // by position
  void operator()(const StepView& step) {
    const std::lock_guard lock(mutex_);
    for (const BatchItem& item : step.items) {
      for (int row = item.first_logit; row < item.count; ++row) {
        const float* logits = step.output.logits.row_f32(item.output_row + row - item.first_logit);
        rows_[item.sequence->request.request_id][item.begin + row] = {logits, logits + step.output.logits.dim(1)};
      }
    }
  }
  Rows of(const std::string& id) {
    const std::lock_guard lock(mutex_);
    return rows_[id];
  }

 private:
  std::mutex mutex_{};
  std::map<std::string, Rows> rows_{};
};

inline const Registry& registry() {
  static const Registry all = make_registry();
  return all;
}

struct RigOptions {
  std::string folder = golden_path("random/base");
  EngineOptions engine{.max_running = 16, .max_batch_tokens = 1100, .chunk_tokens = 64, .max_context = 320};
  int64_t pages = 64;
  int page_tokens = 64;
  int threads = 1;
  std::vector<int32_t> poisoned_ids{};  // their embedding rows are NaN
};

struct Rig {
  std::unique_ptr<ThreadPool> pool{};
  std::unique_ptr<LoadedModel> model{};
  std::vector<std::byte> poisoned_embedding{};
  std::unique_ptr<KvCache> cache{};
  ForwardBuffersPtr buffers{};
  std::shared_ptr<std::byte> workspace{};
  std::unique_ptr<Executor> executor{};
  LogitsRecorder logits{};
  std::unique_ptr<Engine> engine{};  // last: ends first
};

inline void poison_embedding(Rig& rig, const std::vector<int32_t>& ids) {
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

// Null, with a test failure, when something can't be made.
inline std::unique_ptr<Rig> make_rig(const RigOptions& options) {
  auto rig = std::make_unique<Rig>();
  rig->pool = std::make_unique<ThreadPool>(options.threads);
  LoadModelOptions load{.device = detect_cpu()};
  load.plan.backend = "reference";
  load.plan.kv = "f32";
  load.plan.index_keys = "f32";
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

// A request in flight.
struct Client {
  explicit Client(Engine& engine, const GenerateRequest& request) : stream(std::make_shared<TokenStream>()) {
    stream->on_ready = [wakes = wakes] {
      wakes->fetch_add(1);
      wakes->notify_all();
    };
    const Status status = engine.submit(request, stream);
    EXPECT_TRUE(status) << status.error().to_string();
    ended = !status;
  }
  // Waits for at least `count` events in all, or the end.
  void wait(size_t count = SIZE_MAX) {
    std::vector<TokenEvent> batch;
    while (!ended && events.size() < count) {
      const uint32_t seen = wakes->load();
      ended = stream->take(batch);
      if (batch.empty() && !ended) wakes->wait(seen);
      for (TokenEvent& event : batch) events.push_back(std::move(event));
    }
  }
  std::vector<int32_t> ids() const {
    std::vector<int32_t> out;
    for (const TokenEvent& event : events) {
      if (event.id >= 0) out.push_back(event.id);
    }
    return out;
  }
  FinishReason finish() const { return events.empty() ? FinishReason::None : events.back().finish; }

  std::shared_ptr<TokenStream> stream{};
  std::shared_ptr<std::atomic<uint32_t>> wakes = std::make_shared<std::atomic<uint32_t>>(0);
  std::vector<TokenEvent> events{};
  bool ended = false;
};

}  // namespace plumb::testing
