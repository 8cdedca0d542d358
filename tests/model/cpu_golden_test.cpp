// The CPU backend against the float32 goldens, for each checkpoint format and cache format. Greedy tokens must be equal
// wherever the golden's margin between the two best logits exceeds greedy_bound(); the divergence is
// reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <string_view>

#include "runners.h"
#include "support/paths.h"

namespace plumb::testing {
namespace {

struct Case {
  const char* name;  // folder under models/
  const char* run;
  bool bundled;
  const char* kv;
  const char* index_keys;
};
constexpr Case kCases[] = {
    {"tiny-glm-dsa-nvfp4", "nvfp4-dequant-float32", true, "bf16", "bf16"},
    {"tiny-glm-dsa-nvfp4", "nvfp4-dequant-float32", true, "fp8", "bf16"},
    {"tiny-glm-dsa-nvfp4", "nvfp4-dequant-float32", true, "fp8", "fp8"},
    {"tiny-glm-dsa", "float32", false, "bf16", "bf16"},
    {"tiny-glm-dsa", "float32", false, "fp8", "bf16"},
    {"tiny-glm-dsa-fp8", "fp8-dequant-float32", false, "bf16", "bf16"},
    {"tiny-glm-dsa-fp8", "fp8-dequant-float32", false, "fp8", "bf16"},
    {"tiny-glm-dsa-fp8-ue8m0", "fp8-ue8m0-dequant-float32", false, "bf16", "bf16"},
    {"tiny-glm-dsa-fp8-ue8m0", "fp8-ue8m0-dequant-float32", false, "fp8", "bf16"},
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name << ", kv " << c.kv << ", index keys " << c.index_keys; }

// KL(want || got) of one row, in nats.
double divergence(std::span<const float> want, std::span<const float> got) {
  const auto log_sum = [](std::span<const float> x) {
    const double top = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float v : x) sum += std::exp(static_cast<double>(v) - top);
    return top + std::log(sum);
  };
  const double a = log_sum(want);
  const double b = log_sum(got);
  double kl = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double p = static_cast<double>(want[i]) - a;
    kl += std::exp(p) * (p - (static_cast<double>(got[i]) - b));
  }
  return kl;
}

float top2_margin(std::span<const float> logits) {
  float best = -INFINITY;
  float second = -INFINITY;
  for (const float v : logits) {
    second = std::max(second, std::min(best, v));
    best = std::max(best, v);
  }
  return best - second;
}

// What rounding may move the difference of two logits by, derived from bf16, to which every format's kernels round the
// activations (weights are used exactly). Rounding to bf16 errs by 0.425 x 2^-8 of a value in the root mean square
// (uniform within half a unit, mantissas spread by their logarithm). On the way through a layer at most 8 such
// roundings follow one another: the normed input, q_lora latent, absorbed query, cached latent, attention's two sums,
// and the MLP's input and intermediate; one more before the head. Each adds to what came before, independently, and a
// layer hands on what it got, so the last hidden state errs by sqrt(8 layers + 1) of them, relative to its size; so do
// logits, relative to their spread over the vocabulary. Four deviations of a difference of two: beyond that 1 in
// 16,000. In an FP8 cache the latent's rounding is 16 times as coarse, which counts for 256.
double greedy_bound(std::span<const float> logits, int layers, bool fp8_cache) {
  double mean = 0;
  for (const float v : logits) mean += static_cast<double>(v);
  mean /= static_cast<double>(logits.size());
  double squares = 0;
  for (const float v : logits) squares += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean);
  const double spread = std::sqrt(squares / static_cast<double>(logits.size()));
  const double roundings = (fp8_cache ? 7.0 + 256.0 : 8.0) * layers + 1;
  return 4 * std::sqrt(2.0) * 0.425 * 0x1p-8 * std::sqrt(roundings) * spread;
}

struct Counts {
  int positions = 0, inside = 0, differing = 0;
  double kl = 0, worst_kl = 0;
  double expected_kl = 0;  // half the square of the deviation of a logit, by the rule of greedy_bound()
  float error = 0;
};

// The golden's own tokens are fed, so that one turned token does not spoil the rest. `reference` supplies the logits
// that the golden's greedy tokens came from.
void compare_prompt(const Case& c, const RunnerKey& cpu, const RunnerKey& reference, const GoldenPrompt& prompt,
                    Counts& counts) {
  const std::vector<int32_t>& greedy = prompt.runs.at(c.run).greedy_ids;
  const GreedyRun& want = greedy_run(reference, prompt, greedy.size());
  ASSERT_EQ(want.ids, greedy);
  ModelRunner* runner = shared_runner(cpu);
  ASSERT_NE(runner, nullptr);
  const auto vocab = static_cast<size_t>(runner->config().vocab_size);
  auto logits = runner->feed(prompt.ids, 1);
  for (size_t i = 0; i < greedy.size(); ++i) {
    ASSERT_TRUE(logits) << logits.error().to_string();
    const auto golden = std::span(want.greedy_logits).subspan(i * vocab, vocab);
    const float margin = top2_margin(golden);
    const double kl = divergence(golden, *logits);
    ++counts.positions;
    counts.kl += kl;
    counts.worst_kl = std::max(counts.worst_kl, kl);
    for (size_t v = 0; v < vocab; ++v) counts.error = std::max(counts.error, std::fabs((*logits)[v] - golden[v]));
    const double bound = greedy_bound(golden, runner->config().num_hidden_layers, c.kv == std::string_view("fp8"));
    counts.expected_kl += bound * bound / 64;
    const bool inside = static_cast<double>(margin) <= bound;
    counts.inside += inside ? 1 : 0;
    if (argmax(*logits) != greedy[i]) {
      ++counts.differing;
      EXPECT_TRUE(inside) << prompt.name << " token " << i << ": " << argmax(*logits) << " instead of " << greedy[i]
                          << " although the golden's margin is " << margin;
      std::printf("  %s token %zu turned, golden margin %g\n", prompt.name.c_str(), i, static_cast<double>(margin));
    }
    logits = runner->feed(std::span(greedy).subspan(i, 1), 1);
  }
}

class CpuGolden : public ::testing::TestWithParam<Case> {};

TEST_P(CpuGolden, GreedyTokensEqualOutsideTheMargin) {
  const Case& c = GetParam();
  const std::string folder = c.bundled ? model_path(c.name) : extra_data_path(std::string("models/") + c.name);
  if (folder.empty())
    GTEST_SKIP() << "models/" << c.name << " is not there: PLUMB_TEST_DATA names no folder that has it";
  if (kSlowBuild && !c.bundled) GTEST_SKIP() << "the bundled format stands for all in a sanitizer build";
  Counts counts;
  for (const GoldenPrompt& prompt : golden_prompts()) {
    if (too_long(prompt)) continue;
    SCOPED_TRACE(prompt.name);
    compare_prompt(c, {.folder = folder, .backend = "cpu", .kv = c.kv, .index_keys = c.index_keys}, {.folder = folder},
                   prompt, counts);
    if (HasFatalFailure()) return;
  }
  std::printf(
      "{\"model\": \"%s\", \"kv\": \"%s\", \"index_keys\": \"%s\", \"positions\": %d, \"inside_margin\": %d, "
      "\"differing\": %d, \"mean_kl\": %.3g, \"max_kl\": %.3g, \"max_logit_error\": %.3g}\n",
      c.name, c.kv, c.index_keys, counts.positions, counts.inside, counts.differing, counts.kl / counts.positions,
      counts.worst_kl, static_cast<double>(counts.error));
  EXPECT_LE(counts.kl, counts.expected_kl);
  if (c.kv == std::string_view("bf16")) {
    EXPECT_LE(counts.inside, counts.positions / 10);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuGolden, ::testing::ValuesIn(kCases), [](const auto& variant) {
  std::string name = std::string(variant.param.name) + "_kv_" + variant.param.kv + "_keys_" + variant.param.index_keys;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(CpuDecode, EqualsPrefill) {
  ModelRunner* runner = shared_runner({.folder = model_path(), .backend = "cpu"});
  ASSERT_NE(runner, nullptr);
  const std::vector<int32_t>& ids = golden_prompt("needle_200").ids;
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

}  // namespace
}  // namespace plumb::testing
