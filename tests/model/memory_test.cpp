// Planned memory against what a process takes: pages that are really there, by category.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>

#include "base/thread_pool.h"
#include "model/buffers.h"
#include "model/runner.h"
#include "model/synth.h"
#include "runners.h"
#include "variant_files.h"

namespace plumb::testing {
namespace {

constexpr int64_t kPage = 4096;

// Bytes of [begin, begin + bytes) whose pages exist for this process; -1 where the system does not tell.
int64_t resident(const void* begin, int64_t bytes) {
  const int fd = ::open("/proc/self/pagemap", O_RDONLY);
  if (fd < 0) return -1;
  const int64_t first = reinterpret_cast<intptr_t>(begin) / kPage;
  const int64_t last = (reinterpret_cast<intptr_t>(begin) + bytes - 1) / kPage;
  std::vector<uint64_t> entries(static_cast<size_t>(last - first + 1));
  const auto size = static_cast<ssize_t>(entries.size() * sizeof(uint64_t));
  const bool read = ::pread(fd, entries.data(), static_cast<size_t>(size), first * 8) == size;
  ::close(fd);
  if (!read) return -1;
  int64_t pages = 0;
  for (const uint64_t entry : entries)
    pages += entry >> 63 != 0 || (entry >> 62 & 1) != 0 ? 1 : 0;  // present or swapped
  return std::min(pages * kPage, bytes);
}

std::string medium_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_config_json());
  config.update({{"hidden_size", 512},
                 {"intermediate_size", 1024},
                 {"moe_intermediate_size", 256},
                 {"n_routed_experts", 16},
                 {"num_attention_heads", 8},
                 {"num_key_value_heads", 8},
                 {"q_lora_rank", 256},
                 {"kv_lora_rank", 256},
                 {"qk_nope_head_dim", 64},
                 {"qk_rope_head_dim", 32},
                 {"v_head_dim", 64},
                 {"index_n_heads", 8},
                 {"index_head_dim", 64},
                 {"index_topk", 64},
                 {"vocab_size", 2048},
                 {"max_position_embeddings", 2048}});
  return config.dump();
}

struct MemoryCase {
  const char* name;
  SynthFormat format;
  bool shared_indexers;
  const char* kv;
};

class PlannedMemory : public ::testing::TestWithParam<MemoryCase> {};

// Sums what the kernels of each format's weights read.
class Weights {
 public:
  explicit Weights(const Registry& registry) : registry_(registry) {}
  void add(const Weight& w) {
    if (w.source.data == nullptr) return;
    const Conversion* c = w.prepared == nullptr ? nullptr : registry_.conversion(w.layout, w.format());
    const int64_t bytes =
        c != nullptr ? static_cast<int64_t>(c->bytes(w.source)) : encoded_data_bytes(w.format(), w.n(), w.k());
    found_["weights " + w.format().to_string()] += resident(c != nullptr ? w.prepared : w.source.data, bytes);
    if (c == nullptr && w.source.scale != nullptr)
      found_["weights " + w.format().to_string()] +=
          resident(w.source.scale, encoded_scale_bytes(w.format(), w.n(), w.k()));
  }
  const std::map<std::string, int64_t>& found() const { return found_; }

 private:
  const Registry& registry_;
  std::map<std::string, int64_t> found_{};
};

std::map<std::string, int64_t> taken(ModelRunner& runner) {
  Weights weights(test_registry());
  const ModelWeights& w = runner.model().weights;
  weights.add(w.embed);
  weights.add(w.lm_head);
  for (const LayerWeights& layer : w.layers) {
    for (const Weight* weight : {&layer.q_a, &layer.q_b, &layer.kv_a, &layer.kv_b, &layer.o, &layer.wq_b, &layer.wk,
                                 &layer.weights_proj, &layer.gate, &layer.up, &layer.down, &layer.router})
      weights.add(*weight);
    for (const auto* experts : {&layer.expert_gate, &layer.expert_up, &layer.expert_down})
      for (const Weight& expert : *experts) weights.add(expert);
  }
  std::map<std::string, int64_t> found = weights.found();
  Forward& f = runner.forward_state();
  const int64_t pages = f.cache.pages();
  for (int layer = 0; layer < runner.config().num_hidden_layers; ++layer) {
    const KvView view = f.cache.view(layer);
    found["KV cache"] += resident(view.latent, pages * view.geometry.latent_page_bytes());
    if (view.index_keys != nullptr)
      found["indexer keys"] += resident(view.index_keys, pages * view.geometry.index_page_bytes());
  }
  found["activations of a step"] =
      resident(f.buffers.storage.get(), forward_buffer_bytes(runner.config(), runner.planned().limits));
  return found;
}

TEST_P(PlannedMemory, IsWhatTheProcessTakes) {
  const MemoryCase& c = GetParam();
  TemporaryFolder folder;
  const std::string path = folder.path() + "/model";
  nlohmann::json config = nlohmann::json::parse(medium_config());
  if (c.shared_indexers) config["indexer_types"] = {"full", "shared", "full", "shared"};
  ThreadPool pool(2);
  const Status made = synthesize({.config_json = config.dump(), .format = c.format}, path, pool);
  ASSERT_TRUE(made) << made.error().to_string();
  RunnerOptions options{.threads = 2};
  options.plan.kv = c.kv;
  options.plan.max_rows = 512;
  options.plan.max_sequences = 2;
  options.plan.max_context = 1024;
  auto runner = ModelRunner::open(path, test_registry(), options);
  ASSERT_TRUE(runner) << runner.error().to_string();
  // Every page of the cache and every row of the buffers gets used.
  std::vector<RunnerRow> rows;
  for (int step = 0; step < 4; ++step) {
    rows.clear();
    for (int i = 0; i < 512; ++i) rows.push_back({.sequence = i / 256, .id = (step * 512 + i) % 2048, .logits = true});
    const auto out = (*runner)->step(rows);
    ASSERT_TRUE(out) << out.error().to_string();
  }
  if (resident(rows.data(), 1) < 0) GTEST_SKIP() << "/proc/self/pagemap cannot be read here";
  const std::map<std::string, int64_t> found = taken(**runner);
  int compared = 0;
  for (const auto& [category, planned] : (*runner)->planned().plan.memory) {
    const auto at = found.find(category);
    if (at == found.end()) continue;  // norms are a few pages; the workspace belongs to the executor
    EXPECT_NEAR(static_cast<double>(at->second) / static_cast<double>(planned), 1.0, 0.03)
        << category << ": planned " << planned << ", there are " << at->second;
    ++compared;
  }
  EXPECT_GE(compared, 4);
}

INSTANTIATE_TEST_SUITE_P(Models, PlannedMemory,
                         ::testing::Values(MemoryCase{"bf16", SynthFormat::Bf16, false, "bf16"},
                                           MemoryCase{"fp8", SynthFormat::Fp8, false, "fp8"},
                                           MemoryCase{"nvfp4", SynthFormat::Nvfp4, true, "bf16"}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace plumb::testing
