// What the plan of a whole model decides, says and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/loaded_model.h"
#include "runners.h"
#include "support/paths.h"

namespace plumb::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

Result<PlannedModel> plan_with(const ModelPlanOptions& options, const std::string& folder = model_path()) {
  auto opened = open_model(folder);
  EXPECT_TRUE(opened) << opened.error().to_string();
  return plan_opened(*opened, test_registry(), detect_cpu(), options);
}

std::string effective(const PlannedModel& planned, const std::string& flag) {
  for (const FlagLine& line : planned.plan.flags)
    if (line.name == flag) return line.effective;
  return "(no line)";
}

TEST(ModelPlan, ReferenceDefaultsAreWhatTheGoldensHold) {
  const auto planned = plan_with({.backend = "reference"});
  ASSERT_TRUE(planned) << planned.error().to_string();
  EXPECT_EQ(planned->kv.latent, KvFormat::F32);
  EXPECT_EQ(planned->kv.index_key, IndexKeyFormat::F32);
  EXPECT_EQ(planned->numerics, Numerics{});
  EXPECT_EQ(planned->latent_norm_eps, 1e-6);
  EXPECT_EQ(effective(*planned, "numeric.latent_norm_eps"), "1e-06");
  EXPECT_EQ(effective(*planned, "numeric.rope_cos_sin"), "f32");
  EXPECT_EQ(effective(*planned, "kv"), "f32");
  EXPECT_TRUE(planned->with_mtp);
  for (const Site& site : planned->plan.sites)
    for (const Choice& choice : site.choices) EXPECT_TRUE(choice.kernel->contract.reference) << site.decl.name;
}

TEST(ModelPlan, EngineProfileIsNamedEntryByEntry) {
  const auto planned = plan_with({.backend = "reference", .kv = "fp8", .numeric_profile = "engine"});
  ASSERT_TRUE(planned) << planned.error().to_string();
  EXPECT_FLOAT_EQ(static_cast<float>(planned->latent_norm_eps), 1e-5f);
  EXPECT_EQ(planned->kv.index_key, IndexKeyFormat::Fp8);
  EXPECT_EQ(planned->plan.numeric_profile, "engine");
  const auto transformers = plan_with({.backend = "reference", .kv = "fp8"});
  ASSERT_TRUE(transformers);
  EXPECT_NE(transformers->kv.index_key, IndexKeyFormat::Fp8);
  EXPECT_NE(planned->plan.fingerprint(), transformers->plan.fingerprint());
}

TEST(ModelPlan, Bf16ActivationsFollowTransformersRoundings) {
  const auto planned = plan_with({.backend = "reference", .activations = "bf16"});
  ASSERT_TRUE(planned) << planned.error().to_string();
  EXPECT_TRUE(planned->numerics.round_bf16 && planned->numerics.norm_two_roundings && planned->numerics.rope_bf16);
  const auto engine = plan_with({.backend = "reference", .numeric_profile = "engine", .activations = "bf16"});
  ASSERT_TRUE(engine);
  EXPECT_TRUE(engine->numerics.round_bf16);
  EXPECT_FALSE(engine->numerics.norm_two_roundings || engine->numerics.rope_bf16);
}

TEST(ModelPlan, SaysThatTheCheckpointOnlyAsksForFp8Kv) {
  const auto planned = plan_with({.backend = "reference"});
  ASSERT_TRUE(planned);
  EXPECT_THAT(planned->plan.notes, Contains(HasSubstr("asks for a FP8 KV cache and ships no scales")));
}

TEST(ModelPlan, CountsMemoryByCategory) {
  const auto planned = plan_with({.backend = "reference", .max_rows = 8, .max_context = 128, .pages = 10});
  ASSERT_TRUE(planned) << planned.error().to_string();
  std::map<std::string, int64_t> memory(planned->plan.memory.begin(), planned->plan.memory.end());
  // Latent rows of 7 layers (128 + 32 values) and index keys of 7 (128 values), f32, 64 tokens a page.
  EXPECT_EQ(memory.at("KV cache"), 10 * 64 * 7 * 160 * 4);
  EXPECT_EQ(memory.at("indexer keys"), 10 * 64 * 7 * 128 * 4);
  EXPECT_GT(memory.at("weights nvfp4(e2m1/1x16/ue4m3+f32)"), 0);
  EXPECT_GT(memory.at("weights bf16"), 0);
  EXPECT_GT(memory.at("activations of a step"), 0);
}

TEST(ModelPlan, UnknownValuesAreUsageErrorsWithTheKnownOnes) {
  const auto bad = plan_with({.kv = "int4"});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, Code::Usage);
  EXPECT_THAT(bad.error().works, Contains("--kv fp8"));
  EXPECT_EQ(plan_with({.backend = "tpu"}).error().code, Code::Usage);
  EXPECT_EQ(plan_with({.numeric_profile = "exact"}).error().code, Code::Usage);
  EXPECT_EQ(plan_with({.max_rows = 0}).error().code, Code::Usage);
}

TEST(ModelPlan, WishesThatCannotBeHonouredAreRefusedWithWhatCan) {
  const auto context = plan_with({.backend = "reference", .max_context = 5000});
  ASSERT_FALSE(context);
  EXPECT_EQ(exit_code(context.error().code), 2);
  EXPECT_THAT(context.error().works, Contains(HasSubstr("--context 4096")));
  const auto pages = plan_with({.backend = "reference", .max_context = 4096, .pages = 2});
  ASSERT_FALSE(pages);
  EXPECT_EQ(exit_code(pages.error().code), 2);
  EXPECT_THAT(pages.error().works, Contains("--context 128"));
  const auto huge = plan_with({.backend = "reference", .pages = int64_t{1} << 40});
  ASSERT_FALSE(huge);
  EXPECT_EQ(exit_code(huge.error().code), 2);
  const auto mtp = plan_with({.backend = "reference", .mtp = "on"}, golden_path("random/base"));
  ASSERT_FALSE(mtp);
  EXPECT_EQ(exit_code(mtp.error().code), 2);
  const auto pin = plan_with({.backend = "reference", .pinned = {{"linear", "linear.no.such"}}});
  ASSERT_FALSE(pin);
  EXPECT_EQ(pin.error().code, Code::Usage);
}

TEST(ModelPlan, MtpOffLeavesTheLayerOut) {
  const auto planned = plan_with({.backend = "reference", .mtp = "off"});
  ASSERT_TRUE(planned);
  EXPECT_FALSE(planned->with_mtp);
  EXPECT_EQ(planned->sites.layers.size(), 6u);
  EXPECT_EQ(effective(*planned, "mtp"), "off");
}

TEST(ModelPlan, CpuNeverFallsBackToTheReference) {
  const auto planned = plan_with({.backend = "cpu"});
  if (!planned) {
    EXPECT_EQ(exit_code(planned.error().code), 2);
    EXPECT_THAT(planned.error().works, Contains(HasSubstr("--backend reference")));
    return;
  }
  EXPECT_EQ(planned->kv.latent, KvFormat::Bf16);
  for (const Site& site : planned->plan.sites)
    for (const Choice& choice : site.choices) EXPECT_FALSE(choice.kernel->contract.reference) << site.decl.name;
}

// Rows decide the bucket; every bucket up to the largest step has a kernel.
TEST(ModelPlan, EveryRowCountHasAKernel) {
  for (const int rows : {1, 2, 8, 9, 64, 65, 100}) {
    const auto planned = plan_with({.backend = "reference", .max_rows = rows});
    ASSERT_TRUE(planned);
    for (size_t site = 0; site < planned->plan.sites.size(); ++site) {
      const auto& choices = planned->plan.sites[site].choices;
      EXPECT_EQ(choices.front().rows.m_lo, 1);
      EXPECT_EQ(choices.back().rows.m_hi, rows);
      for (size_t i = 1; i < choices.size(); ++i) EXPECT_EQ(choices[i].rows.m_lo, choices[i - 1].rows.m_hi + 1);
    }
  }
}

}  // namespace
}  // namespace plumb::testing
