// A real engine over a small checkpoint with reference kernels, whose rows do not depend on the batch by one bit.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "model/instance.h"
#include "support/paths.h"

namespace plumb::testing {

// Logits of every position a request was asked for, by request id. Filled by the engine thread.
class LogitsRecorder {
 public:
  using Rows = std::map<int, std::vector<float>>;  // by position
  // `logits`: the step's, in host memory.
  void operator()(const StepView& step, const Tensor& logits) {
    const std::lock_guard lock(mutex_);
    for (const BatchItem& item : step.items) {
      for (int row = item.first_logit; row < item.count; ++row) {
        const float* of_row = logits.row_f32(item.output_row + row - item.first_logit);
        rows_[item.sequence->request.request_id][item.begin + row] = {of_row, of_row + logits.dim(1)};
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

// Tests that run on every backend of this machine: rigs made in them are of the backend that the test is named after.
class OnBackend : public ::testing::TestWithParam<const char*> {
 public:
  static const std::string& current() { return current_; }

 protected:
  void SetUp() override;
  void TearDown() override { current_ = "reference"; }

 private:
  inline static std::string current_ = "reference";
};
inline auto all_backends() { return ::testing::Values("reference", "cuda"); }
inline std::string backend_name(const ::testing::TestParamInfo<const char*>& info) { return info.param; }
const Registry& rig_registry();

struct RigOptions {
  RigOptions();
  RigOptions(const RigOptions& other);
  ~RigOptions();
  std::string folder = golden_path("random/base");
  EngineOptions engine{.max_running = 16, .max_batch_tokens = 1100, .chunk_tokens = 64, .max_context = 320};
  int64_t pages = 64;
  int page_tokens = 64;
  int threads = 1;
  // On a device only kernels that add f32 activations in one order promise the same bits in every batch.
  std::string backend = OnBackend::current(), kv = "f32", index_keys = "f32";
  std::string activations = backend == "cuda" ? "f32" : "auto";
  bool deterministic = backend == "cuda";
  std::vector<int32_t> poisoned_ids{};  // their embedding rows are NaN
};

struct Rig {
  std::unique_ptr<ThreadPool> pool{};
  std::unique_ptr<ModelInstance> instance{};
  std::vector<std::byte> poisoned_embedding{};
  LogitsRecorder logits{};
  std::unique_ptr<Engine> engine{};  // last: ends first

  const ModelConfig& config() const { return instance->config(); }
  Executor& executor() { return *instance->executor; }
};

// change(Tensor&) on the values of a tensor, wherever they lie.
template <class Change>
void change_values(Executor& executor, const Tensor& tensor, Change change) {
  std::vector<std::byte> storage;
  Tensor here = executor.to_host(tensor, storage);
  change(here);
  if (tensor.where == Where::Host) return;
  for (int64_t r = 0; r < tensor.dim(0); ++r)
    executor.memory().upload(tensor.row_f32(r), here.row_f32(r), static_cast<size_t>(here.dim(1)) * 4,
                             executor.stream());
  executor.memory().synchronise(executor.stream());
}

// Null, with a test failure, when something can't be made.
std::unique_ptr<Rig> make_rig(const RigOptions& options = {});

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
