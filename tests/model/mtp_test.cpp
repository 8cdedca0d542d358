// The multi-token-prediction layer against the training implementation's float32, and its drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runners.h"
#include "support/paths.h"

namespace plumb::testing {
namespace {

struct MtpPass {
  std::vector<float> logits{};  // [rows, vocab]
  std::vector<float> hidden{};  // [rows, hidden_size] of the trunk
};

// Trunk and MTP layer over all of `ids`: row t is h_t with token t+1. Chunk by chunk, as an engine would prefill.
MtpPass run_mtp(ModelRunner& runner, const std::vector<int32_t>& ids, size_t chunk) {
  MtpPass out;
  for (size_t begin = 0; begin + 1 < ids.size(); begin += chunk) {
    const size_t end = std::min(begin + chunk, ids.size() - 1);
    std::vector<RunnerRow> rows;
    for (size_t i = begin; i < end; ++i) rows.push_back({.id = ids[i]});
    const auto trunk = runner.step(rows);
    EXPECT_TRUE(trunk) << trunk.error().to_string();
    if (!trunk) return out;
    out.hidden.insert(out.hidden.end(), trunk->hidden.f32(), trunk->hidden.f32() + trunk->hidden.elements());
    const std::span<const int32_t> next(ids.data() + begin + 1, end - begin);
    const auto draft = runner.mtp_step(next, trunk->hidden, static_cast<int>(begin), false);
    EXPECT_TRUE(draft) << draft.error().to_string();
    if (!draft) return out;
    out.logits.insert(out.logits.end(), draft->logits.f32(), draft->logits.f32() + draft->logits.elements());
  }
  return out;
}

TEST(Mtp, FollowsTheTrainingImplementation) {
  PLUMB_REQUIRE_EXTRA_DATA(folder, "models/tiny-glm-dsa");
  PLUMB_REQUIRE_EXTRA_DATA(path, "golden/tiny-glm-dsa/mtp.float32.safetensors");
  const GoldenFile golden(path);
  for (const GoldenPrompt& prompt : golden_prompts()) {
    if (too_long(prompt)) continue;
    SCOPED_TRACE(prompt.name);
    ModelRunner* runner = shared_runner({.folder = folder});
    ASSERT_NE(runner, nullptr);
    std::vector<int32_t> ids = prompt.ids;
    const std::vector<int32_t>& greedy = prompt.runs.at("float32").greedy_ids;
    ids.insert(ids.end(), greedy.begin(), greedy.end());
    const MtpPass got = run_mtp(*runner, ids, 512);
    const std::vector<float> want = golden.floats(prompt.name + ".mtp_logits_last32");
    const std::vector<float> hidden = golden.floats(prompt.name + ".final_norm_last32");
    ASSERT_GE(got.logits.size(), want.size());
    EXPECT_TRUE(within(std::span(got.hidden).last(hidden.size()), hidden, 1e-4f * max_abs(hidden)));
    EXPECT_TRUE(within(std::span(got.logits).last(want.size()), want, 1e-4f * max_abs(want)));
  }
}

TEST(Mtp, ChunksChangeNoBit) {
  ModelRunner* runner = shared_runner({.folder = model_path()});
  ASSERT_NE(runner, nullptr);
  std::vector<int32_t> ids = golden_prompt("needle_200").ids;
  if (kSlowBuild) ids.resize(90);
  const MtpPass whole = run_mtp(*runner, ids, 512);
  for (const size_t chunk : {size_t{1}, size_t{7}, size_t{64}}) {
    runner->reset();
    EXPECT_EQ(run_mtp(*runner, ids, chunk).logits, whole.logits) << "chunks of " << chunk;
  }
}

// Later drafts of a round. Where everything is selected anyway, reusing the set plus the new position is what the
// layer's own indexer would choose.
TEST(Mtp, ReusedSelectionEqualsTheOwnOneWhileTheContextIsShort) {
  ModelRunner* runner = shared_runner({.folder = model_path()});
  ASSERT_NE(runner, nullptr);
  const std::vector<int32_t>& ids = golden_prompt("multi_turn").ids;
  const auto hidden_size = runner->config().hidden_size;
  std::vector<std::vector<float>> drafts[2];
  for (const bool reuse : {false, true}) {
    runner->reset();
    run_mtp(*runner, ids, 512);
    int position = static_cast<int>(ids.size()) - 1;
    std::vector<float> hidden(static_cast<size_t>(hidden_size), 0.25f);
    for (int draft = 0; draft < kMaxReusedDrafts; ++draft, ++position) {
      const int32_t token = 100 + draft;
      const auto out =
          runner->mtp_step({&token, 1}, Tensor(hidden.data(), DType::F32, {1, hidden_size}), position, reuse);
      ASSERT_TRUE(out) << out.error().to_string();
      drafts[reuse].emplace_back(out->logits.f32(), out->logits.f32() + out->logits.elements());
      hidden.assign(out->hidden.f32(), out->hidden.f32() + hidden_size);
    }
  }
  EXPECT_EQ(drafts[0], drafts[1]);
}

// In a long context the reused set is the one of the round's first step, not a new choice.
TEST(Mtp, ReusedSelectionStaysInALongContext) {
  ModelRunner* runner = shared_runner({.folder = model_path()});
  ASSERT_NE(runner, nullptr);
  const std::vector<int32_t>& ids = golden_prompt("needle_200").ids;
  const auto hidden_size = runner->config().hidden_size;
  std::vector<float> drafts[2];
  for (const bool reuse : {false, true}) {
    runner->reset();
    run_mtp(*runner, ids, 512);
    std::vector<float> hidden(static_cast<size_t>(hidden_size), 0.25f);
    const int32_t token = 100;
    const auto out = runner->mtp_step({&token, 1}, Tensor(hidden.data(), DType::F32, {1, hidden_size}),
                                      static_cast<int>(ids.size()) - 1, reuse);
    ASSERT_TRUE(out) << out.error().to_string();
    drafts[reuse].assign(out->logits.f32(), out->logits.f32() + out->logits.elements());
    for (const float logit : drafts[reuse]) ASSERT_TRUE(std::isfinite(logit));
  }
  EXPECT_NE(drafts[0], drafts[1]);
}

}  // namespace
}  // namespace plumb::testing
