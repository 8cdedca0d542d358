// How a sequence was fed, and what it shared its steps with, changes no bit of the reference's logits.
#include <gtest/gtest.h>

#include <algorithm>

#include "runners.h"
#include "support/paths.h"

namespace plumb::testing {
namespace {

// Longer than index_topk (64) in any build.
std::vector<int32_t> needle_ids() {
  std::vector<int32_t> ids = golden_prompt("needle_200").ids;
  if (kSlowBuild) ids.resize(90);
  return ids;
}

TEST(Decode, ChunksChangeNoBit) {
  ModelRunner* runner = shared_runner({.folder = model_path()});
  ASSERT_NE(runner, nullptr);
  const std::vector<int32_t> ids = needle_ids();
  const auto rows = static_cast<int64_t>(ids.size());
  const auto whole = runner->feed(ids, rows);
  ASSERT_TRUE(whole) << whole.error().to_string();
  for (const int chunk : {1, 7, 64}) {
    runner->reset();
    const auto parts = runner->feed(ids, rows, chunk);
    ASSERT_TRUE(parts) << parts.error().to_string();
    EXPECT_EQ(*parts, *whole) << "chunks of " << chunk;
  }
}

TEST(Decode, LongPromptInChunksOf1000ChangesNoBit) {
  const GoldenPrompt& prompt = golden_prompt("needle_2000");
  if (too_long(prompt)) GTEST_SKIP() << "2,000 rows of the reference take too long in a sanitizer build";
  const size_t tokens = prompt.runs.at("nvfp4-dequant-float32").greedy_ids.size();
  const GreedyRun& whole = greedy_run({.folder = model_path()}, prompt, tokens);
  ModelRunner* runner = shared_runner({.folder = model_path(), .max_rows = 1000});
  ASSERT_NE(runner, nullptr);
  const auto parts = runner->feed(prompt.ids, 8);
  ASSERT_TRUE(parts) << parts.error().to_string();
  EXPECT_EQ(*parts, whole.last8);
}

TEST(Decode, PageSizeChangesNoBit) {
  ModelRunner* runner = shared_runner({.folder = model_path()});
  ASSERT_NE(runner, nullptr);
  const std::vector<int32_t> ids = needle_ids();
  const auto usual = runner->feed(ids, 8);
  ASSERT_TRUE(usual);
  for (const int page_tokens : {1, 16, 100}) {
    auto other = ModelRunner::open(model_path(), test_registry(),
                                   {.plan = {.backend = "reference",
                                             .max_rows = 256,
                                             .max_sequences = 1,
                                             .max_context = 256,
                                             .page_tokens = page_tokens}});
    ASSERT_TRUE(other) << other.error().to_string();
    const auto logits = (*other)->feed(ids, 8);
    ASSERT_TRUE(logits);
    EXPECT_EQ(*logits, *usual) << "pages of " << page_tokens;
  }
}

// Sequences of different lengths, some being prefilled while others decode, with padding rows of nonsense in between.
TEST(Decode, SharedStepsChangeNoBit) {
  const RunnerKey alone{.folder = model_path()};
  const char* names[] = {"arith_short", "multi_turn", "tool_weather", "arith_think", "needle_200"};
  constexpr size_t kTokens = 12;
  for (const int batch : kSlowBuild ? std::vector<int>{2} : std::vector<int>{2, 5, 16}) {
    ModelRunner* runner = shared_runner({.folder = model_path(), .max_rows = 64, .sequences = 16, .context = 320});
    ASSERT_NE(runner, nullptr);
    std::vector<std::vector<int32_t>> ids;
    std::vector<std::vector<float>> logits(static_cast<size_t>(batch));
    std::vector<size_t> fed(static_cast<size_t>(batch), 0);
    for (int s = 0; s < batch; ++s) {
      const GoldenPrompt& prompt = golden_prompt(names[static_cast<size_t>(s) % std::size(names)]);
      const GreedyRun& run = greedy_run(alone, prompt, prompt.runs.at("nvfp4-dequant-float32").greedy_ids.size());
      ids.push_back(prompt.ids);
      ids.back().insert(ids.back().end(), run.ids.begin(), run.ids.begin() + kTokens - 1);
    }
    const int64_t vocab = runner->config().vocab_size;
    for (int step = 0;; ++step) {
      std::vector<RunnerRow> rows{{.sequence = -1, .id = -7}};
      std::vector<size_t> owner;
      for (size_t k = 0; k < ids.size(); ++k) {
        const size_t s = (k + static_cast<size_t>(step)) % ids.size();
        const size_t prompt = ids[s].size() - (kTokens - 1);
        const size_t chunk = fed[s] < prompt ? std::min(prompt - fed[s], size_t{3} + s % 5) : 1;
        for (size_t i = 0; i < chunk && fed[s] < ids[s].size() && rows.size() < 62; ++i) {
          const bool wanted = fed[s] + 1 >= prompt;
          rows.push_back({.sequence = static_cast<int>(s), .id = ids[s][fed[s]++], .logits = wanted});
          if (wanted) owner.push_back(s);
        }
      }
      if (rows.size() == 1) break;
      rows.push_back({.sequence = -1, .id = 1 << 30});
      const auto out = runner->step(rows);
      ASSERT_TRUE(out) << out.error().to_string();
      for (size_t i = 0; i < owner.size(); ++i) {
        const float* row = out->logits.row_f32(static_cast<int64_t>(i));
        logits[owner[i]].insert(logits[owner[i]].end(), row, row + vocab);
      }
    }
    for (int s = 0; s < batch; ++s) {
      const GoldenPrompt& prompt = golden_prompt(names[static_cast<size_t>(s) % std::size(names)]);
      const GreedyRun& run = greedy_run(alone, prompt, prompt.runs.at("nvfp4-dequant-float32").greedy_ids.size());
      const std::vector<float> want(run.greedy_logits.begin(),
                                    run.greedy_logits.begin() + static_cast<std::ptrdiff_t>(kTokens) * vocab);
      EXPECT_EQ(logits[static_cast<size_t>(s)], want) << "sequence " << s << " of " << batch;
    }
  }
}

TEST(Decode, RefusesIdsAndLengthsThatWereNotPlannedFor) {
  ModelRunner* runner = shared_runner({.folder = model_path(), .max_rows = 64, .sequences = 16, .context = 320});
  ASSERT_NE(runner, nullptr);
  EXPECT_EQ(runner->feed(std::vector<int32_t>{2048}, 1).error().code, Code::Usage);
  EXPECT_EQ(runner->feed(std::vector<int32_t>{-1}, 1).error().code, Code::Usage);
  EXPECT_EQ(runner->feed(std::vector<int32_t>(321, 5), 1, 64).error().code, Code::Usage);
}

}  // namespace
}  // namespace plumb::testing
