#include "runners.h"

#include <map>
#include <memory>
#include <tuple>

namespace plumb::testing {

const Registry& test_registry() {
  static const Registry registry = make_registry();
  return registry;
}

ModelRunner* shared_runner(const RunnerKey& key) {
  static std::map<RunnerKey, std::unique_ptr<ModelRunner>> runners;
  std::unique_ptr<ModelRunner>& slot = runners[key];
  if (slot == nullptr) {
    auto opened = ModelRunner::open(key.folder, test_registry(),
                                    {.plan = {.backend = key.backend,
                                              .kv = key.kv,
                                              .index_keys = key.index_keys,
                                              .numeric_profile = key.profile,
                                              .activations = key.activations,
                                              .max_rows = key.max_rows,
                                              .max_sequences = key.sequences,
                                              .max_context = key.context}});
    if (!opened) {
      ADD_FAILURE() << opened.error().to_string();
      return nullptr;
    }
    slot = *std::move(opened);
  }
  slot->reset();
  slot->executor().set_tap({});
  return slot.get();
}

namespace {

GreedyRun run_greedy(const RunnerKey& key, const GoldenPrompt& prompt, size_t tokens) {
  GreedyRun out;
  ModelRunner* runner = shared_runner(key);
  if (runner == nullptr) return out;
  auto logits = runner->feed(prompt.ids, 8);
  EXPECT_TRUE(logits) << logits.error().to_string();
  if (!logits) return out;
  out.last8 = *logits;
  const auto vocab = static_cast<size_t>(runner->config().vocab_size);
  std::vector<float> row(out.last8.end() - static_cast<std::ptrdiff_t>(vocab), out.last8.end());
  for (size_t i = 0; i < tokens; ++i) {
    out.ids.push_back(argmax(row));
    out.greedy_logits.insert(out.greedy_logits.end(), row.begin(), row.end());
    if (i + 1 == tokens) break;
    const RunnerRow next{.id = out.ids.back(), .logits = true};
    auto step = runner->step({&next, 1});
    EXPECT_TRUE(step) << step.error().to_string();
    if (!step) break;
    row.assign(step->logits.f32(), step->logits.f32() + vocab);
  }
  return out;
}

}  // namespace

const GreedyRun& greedy_run(const RunnerKey& key, const GoldenPrompt& prompt, size_t tokens) {
  static std::map<std::tuple<RunnerKey, std::string, size_t>, GreedyRun> runs;
  const auto id = std::make_tuple(key, prompt.name, tokens);
  const auto found = runs.find(id);
  if (found != runs.end()) return found->second;
  return runs.emplace(id, run_greedy(key, prompt, tokens)).first->second;
}

}  // namespace plumb::testing
