// The reference executor against transformers' float32 on small random models, one configuration feature each.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runners.h"
#include "support/paths.h"

namespace plumb::testing {
namespace {

RunnerKey random_key(const std::string& name) {
  return {.folder = golden_path("random/" + name), .max_rows = 64, .context = 128};
}

std::vector<int32_t> sorted_rows(std::vector<int32_t> values, int64_t columns) {
  for (auto row = values.begin(); row < values.end(); row += columns) std::sort(row, row + columns);
  return values;
}

class RandomGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(RandomGolden, EveryIntermediateAndLogitFollowsTransformers) {
  const GoldenFile golden(golden_path(std::string("random/") + GetParam() + "/golden.safetensors"));
  ModelRunner* runner = shared_runner(random_key(GetParam()));
  ASSERT_NE(runner, nullptr);
  TapRecorder taps({"*"});
  taps.attach(runner->executor());
  const auto logits = runner->feed(golden.ints("input_ids"), 64);
  ASSERT_TRUE(logits) << logits.error().to_string();
  for (int layer = 0; layer < runner->config().num_hidden_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    SCOPED_TRACE(prefix);
    if (golden.has(prefix + "indexer.topk")) {
      ASSERT_NE(taps.find(prefix + "indexer.topk"), nullptr);
      EXPECT_TRUE(same_sets(*taps.find(prefix + "indexer.topk"), golden.ints(prefix + "indexer.topk"),
                            golden.shape(prefix + "indexer.topk")[1]));
    } else {
      EXPECT_EQ(taps.find(prefix + "indexer.topk"), nullptr) << "a shared layer must not select";
    }
    if (golden.has(prefix + "router.experts")) {
      const int64_t k = golden.shape(prefix + "router.experts")[1];
      EXPECT_EQ(sorted_rows(taps.find(prefix + "router.experts")->ints, k),
                sorted_rows(golden.ints(prefix + "router.experts"), k));
    }
    const std::vector<float> want = golden.floats(prefix + "output");
    ASSERT_NE(taps.find(prefix + "output"), nullptr);
    EXPECT_TRUE(within(taps.find(prefix + "output")->floats, want, 1e-5f * max_abs(want)));
  }
  const std::vector<float> want = golden.floats("logits");
  EXPECT_TRUE(within(*logits, want, 6e-5f)) << "mutations.md: a wrong latent eps shows from 9e-5 on";
  EXPECT_LE(6e-5f, 1e-4f * max_abs(want));
}

TEST_P(RandomGolden, ChunksChangeNoBit) {
  const GoldenFile golden(golden_path(std::string("random/") + GetParam() + "/golden.safetensors"));
  ModelRunner* runner = shared_runner(random_key(GetParam()));
  ASSERT_NE(runner, nullptr);
  const std::vector<int32_t> ids = golden.ints("input_ids");
  const auto whole = runner->feed(ids, 64);
  ASSERT_TRUE(whole) << whole.error().to_string();
  for (const int chunk : {1, 7, 20}) {
    runner->reset();
    const auto parts = runner->feed(ids, 64, chunk);
    ASSERT_TRUE(parts) << parts.error().to_string();
    EXPECT_EQ(*parts, *whole) << "chunks of " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RandomGolden, ::testing::ValuesIn(kRandomModels),
                         [](const auto& variant) { return std::string(variant.param); });

}  // namespace
}  // namespace plumb::testing
