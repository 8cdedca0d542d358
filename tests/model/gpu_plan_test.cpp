// Plans for GPUs that are not here: real configurations, headers alone, each rank's share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "device/profiles.h"
#include "model/loaded_model.h"
#include "model/split.h"
#include "model/synth.h"
#include "runners.h"
#include "support/paths.h"

namespace plumb::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

OpenedModel imagined(const std::string& config_json, SynthFormat format, bool experts_only = false) {
  OpenedModel model;
  auto headers = synth_headers({.config_json = config_json, .format = format, .experts_only = experts_only});
  EXPECT_TRUE(headers) << headers.error().to_string();
  const nlohmann::json config = nlohmann::json::parse(headers->config_json);
  model.config = *parse_model_config(config);
  model.quant = *parse_quant_config(config, nullptr);
  model.checkpoint = std::make_unique<Checkpoint>(*Checkpoint::from_headers(std::move(headers->tensors)));
  model.map = *map_weights(model.config, *model.checkpoint, model.quant);
  return model;
}

std::string real_config(const char* name) {
  return text_of(testing::source_dir() + "/tests/data/configs/" + name + ".json");
}

int64_t weight_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const auto& [category, size] : plan.memory)
    if (category.starts_with("weights") || category.starts_with("norms")) bytes += size;
  return bytes;
}

TEST(GpuPlan, OneDeviceHoldsTheWholeCheckpoint) {
  OpenedModel model = imagined(tiny_config_json({.mtp = true, .wide = true}), SynthFormat::Fp8);
  const auto planned = plan_opened(model, test_registry(), *find_device_profile("h200"), {});
  ASSERT_TRUE(planned) << planned.error().to_string();
  const auto total = static_cast<double>(model.checkpoint->total_bytes());
  // Tiny weights feel the alignment of each to 256 bytes and norms that take a page each.
  EXPECT_GT(static_cast<double>(weight_bytes(planned->plan)), total);
  const auto mapped = std::ranges::find_if(
      planned->plan.host_memory, [](const auto& line) { return line.first.starts_with("checkpoint, mapped"); });
  ASSERT_NE(mapped, planned->plan.host_memory.end());
  EXPECT_EQ(mapped->second, static_cast<int64_t>(model.checkpoint->total_bytes()));
  for (const Site& site : planned->plan.sites)
    for (const Choice& choice : site.choices)
      EXPECT_GE(choice.kernel->contract.arch, Isa::Sm90a) << choice.kernel->contract.name;
}

TEST(GpuPlan, RanksShareHeadsAndWidths) {
  OpenedModel model = imagined(real_config("glm-5.2"), SynthFormat::Nvfp4, /*experts_only=*/true);
  EXPECT_NEAR(static_cast<double>(model.checkpoint->total_bytes()) / 464.8e9, 1.0, 0.001);  // as published
  const auto planned = plan_opened(model, test_registry(), *find_device_profile("rtx-pro-6000"), {.tp = 8});
  ASSERT_TRUE(planned) << planned.error().to_string();
  const auto call_at = [&](const std::string& name) -> const Call& {
    for (const Site& site : planned->plan.sites)
      if (site.decl.name == name) return site.decl.call;
    ADD_FAILURE() << name;
    return planned->plan.sites.front().decl.call;
  };
  EXPECT_EQ(call_at("layers.3.self_attn.attend").heads, 8);
  EXPECT_EQ(call_at("layers.3.self_attn.attend").n, 8 * 448);
  EXPECT_EQ(call_at("layers.3.self_attn.o_proj").k, 8 * 256);
  EXPECT_EQ(call_at("layers.3.self_attn.o_proj").n, 6144);
  EXPECT_EQ(call_at("layers.3.self_attn.q_a_proj").n, 2048);
  EXPECT_EQ(call_at("layers.2.self_attn.indexer.wq_b").n, 32 * 128);
  EXPECT_EQ(call_at("layers.3.mlp.experts").n, 256);
  EXPECT_EQ(call_at("layers.3.mlp.gate").n, 256);
  EXPECT_EQ(call_at("lm_head").n, 19360);
  EXPECT_EQ(planned->plan.fit.devices, 8);
  EXPECT_LE(planned->plan.fit.planned, planned->plan.fit.usable);
  EXPECT_GE(planned->plan.fit.sequences, 1);
}

TEST(GpuPlan, RanksAddUpByWhatTheirDevicesCanAndTheSizeOfTheMessage) {
  OpenedModel model = imagined(real_config("glm-5"), SynthFormat::Fp8);
  DeviceInfo device = *find_device_profile("h200");
  const auto kernels = [&](const ModelPlanOptions& options) {
    const auto planned = plan_opened(model, test_registry(), device, options);
    std::vector<std::string> names;
    EXPECT_TRUE(planned) << planned.error().to_string();
    if (!planned) return names;
    const auto sum = std::ranges::find(planned->plan.sites, std::string("layers.3.self_attn.sum"),
                                       [](const Site& site) { return site.decl.name; });
    for (const Choice& choice : sum->choices) names.push_back(choice.kernel->contract.name);  // rows 1, 8, 64, more
    const bool peers = planned->plan.to_json().dump().find("what ranks send each other") != std::string::npos;
    EXPECT_EQ(peers, std::ranges::any_of(names, [](const std::string& name) { return name.ends_with("_shot.cuda"); }));
    return names;
  };
  const std::string one = "all_reduce.one_shot.cuda", two = "all_reduce.two_shot.cuda", nccl = "all_reduce.nccl.cuda",
                    host = "all_reduce.host.cuda";
  const bool there = test_registry().find(nccl)->contract.absent.empty();
  using Names = std::vector<std::string>;
  EXPECT_EQ(kernels({.tp = 8}), (Names{one, one, two, there ? nccl : two}));
  EXPECT_EQ(kernels({.deterministic = true, .tp = 8}), (Names{one, one, two, two}));
  EXPECT_EQ(kernels({.pinned = {{"all_reduce", host}, {"gather_columns", "gather_columns.host.cuda"}}, .tp = 8}),
            (Names{host, host, host, host}));
  device.unreachable = "GPU 0 has no peer access to GPU 1";
  const std::string far = there ? nccl : host;
  EXPECT_EQ(kernels({.tp = 8}), (Names{far, far, far, far}));
  device.ranks = 2;
  EXPECT_EQ(kernels({.tp = 8}), (Names{host, host, host, host}));
  const auto refused = plan_opened(model, test_registry(), device, {.pinned = {{"all_reduce", nccl}}, .tp = 8});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("own_device: this place has 2 ranks on one device"));
}

TEST(GpuPlan, WhatDoesNotFitIsRefusedWithWhatDoes) {
  OpenedModel model = imagined(real_config("glm-5.2"), SynthFormat::Nvfp4, /*experts_only=*/true);
  const auto one = plan_opened(model, test_registry(), *find_device_profile("h200"), {});
  ASSERT_FALSE(one);
  EXPECT_EQ(exit_code(one.error().code), 2);
  EXPECT_THAT(one.error().works, Contains(HasSubstr("--tp 4 (")));
  const auto long_context =
      plan_opened(model, test_registry(), *find_device_profile("h200"), {.tp = 4, .max_context = 1048576});
  ASSERT_FALSE(long_context);
  EXPECT_THAT(long_context.error().works, Contains(HasSubstr("--context ")));
}

TEST(GpuPlan, RanksThatCutHeadsOrScaleBlocksAreRefused) {
  OpenedModel model = imagined(real_config("glm-5"), SynthFormat::Fp8);
  const DeviceInfo& device = *find_device_profile("b200");
  const auto three = plan_opened(model, test_registry(), device, {.tp = 3});
  ASSERT_FALSE(three);
  EXPECT_THAT(three.error().to_string(), HasSubstr("num_attention_heads 64 cannot be divided by 3"));
  const auto thirty_two = plan_opened(model, test_registry(), device, {.tp = 32});
  ASSERT_FALSE(thirty_two);
  EXPECT_THAT(thirty_two.error().to_string(), HasSubstr("cut through the scale blocks of 128"));
  EXPECT_THAT(thirty_two.error().works, Contains("--tp 16"));
}

TEST(GpuPlan, EveryStepHasAKernelOrAReason) {
  OpenedModel model = imagined(real_config("glm-5.1"), SynthFormat::Fp8);
  const auto planned =
      plan_opened(model, test_registry(), *find_device_profile("h200"), {.mtp = "on", .tp = 8, .draft_tokens = 3});
  ASSERT_TRUE(planned) << planned.error().to_string();
  std::vector<std::string> names;
  for (const Phase& phase : planned->plan.phases) {
    names.push_back(phase.name);
    EXPECT_TRUE(phase.absent.empty()) << phase.name;
    EXPECT_LE(phase.rows.m_hi, planned->limits.rows);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"prefill", "chunked prefill", "decode", "verify", "draft"}));
  const nlohmann::json json = planned->plan.to_json();
  EXPECT_GT(json["contracts"].size(), 10u);
  for (const auto& conversion : json["conversions"]) EXPECT_EQ(conversion["kind"], "exact");
  OpenedModel plain = imagined(real_config("glm-5.1"), SynthFormat::Fp8);
  const auto without = plan_opened(plain, test_registry(), *find_device_profile("h200"), {.mtp = "off", .tp = 8});
  ASSERT_TRUE(without);
  EXPECT_EQ(without->plan.phases[4].absent, "the plan has no next-n layer");
}

// Every weight and cache format on every class of device: a plan, or a refusal that says what works.
TEST(DeviceClasses, DefaultsArePlannedOrRefusedWithWhatWorks) {
  std::vector<DeviceInfo> devices{detect_cpu(), detect_cpu(Isa::Generic)};
  for (const std::string& name : device_profile_names()) devices.push_back(*find_device_profile(name));
  int planned_cells = 0;
  for (const SynthFormat format : {SynthFormat::Bf16, SynthFormat::Fp8, SynthFormat::Fp8Ue8m0, SynthFormat::Nvfp4}) {
    for (const DeviceInfo& device : devices) {
      for (const char* kv : {"auto", "bf16", "fp8"}) {
        OpenedModel model = imagined(tiny_config_json({.mtp = true, .wide = true}), format);
        const auto planned = plan_opened(model, test_registry(), device, {.kv = kv});
        if (!planned) {
          EXPECT_EQ(exit_code(planned.error().code), 2) << planned.error().to_string();
          EXPECT_FALSE(planned.error().works.empty()) << planned.error().to_string();
          continue;
        }
        ++planned_cells;
        EXPECT_EQ(planned->kv.latent, std::string(kv) == "fp8" ? KvFormat::Fp8Tile128 : KvFormat::Bf16);
        const auto costs = std::count_if(planned->plan.warnings.begin(), planned->plan.warnings.end(),
                                         [](const Warning& w) { return w.verdict == "costs accuracy"; });
        EXPECT_EQ(costs, std::string(kv) == "fp8" ? 1 : 0);
      }
    }
  }
  EXPECT_EQ(planned_cells, 4 * 7 * 3);
}

TEST(DeviceClasses, ADeviceThatNoKernelIsBuiltForIsRefused) {
  OpenedModel model = imagined(tiny_config_json(), SynthFormat::Bf16);
  const DeviceInfo device = gpu_of("NVIDIA B300", "10.3", int64_t{1} << 38, 232448);
  const auto planned = plan_opened(model, test_registry(), device, {});
  ASSERT_FALSE(planned);
  EXPECT_EQ(exit_code(planned.error().code), 2);
  EXPECT_THAT(planned.error().to_string(), HasSubstr("NVIDIA B300 with no architecture that kernels are written for"));
}

// A page is as large as its layout: 656 bytes a token in FP8 at GLM's sizes, 1152 in bf16, and 132 or 256 for a key.
TEST(DeviceClasses, PagesAreAsLargeAsTheirLayout) {
  struct Layouts {
    const char* kv;
    const char* keys;
    int64_t latent, key;
  };
  for (const Layouts& l : {Layouts{"bf16", "bf16", 1152, 256}, {"fp8", "fp8", 656, 132}}) {
    OpenedModel model = imagined(real_config("glm-5.2"), SynthFormat::Nvfp4, /*experts_only=*/true);
    const auto planned =
        plan_opened(model, test_registry(), *find_device_profile("b200"),
                    {.kv = l.kv, .index_keys = l.keys, .mtp = "off", .tp = 8, .max_context = 6400, .pages = 100});
    ASSERT_TRUE(planned) << planned.error().to_string();
    std::map<std::string, int64_t> memory(planned->plan.memory.begin(), planned->plan.memory.end());
    EXPECT_EQ(memory.at("KV cache"), 100 * 64 * l.latent * 78) << l.kv;
    EXPECT_EQ(memory.at("indexer keys"), 100 * 64 * l.key * 21) << l.keys;
  }
}

TEST(DeviceClasses, AKernelOfAnotherFormatIsRefusedByPlaceAndFormats) {
  OpenedModel model = imagined(tiny_config_json({.wide = true}), SynthFormat::Nvfp4, /*experts_only=*/true);
  const auto planned =
      plan_opened(model, test_registry(), detect_cpu(), {.pinned = {{"moe", "moe.fp8.strip16.generic"}}});
  ASSERT_FALSE(planned);
  for (const char* part : {"--kernel moe=moe.fp8.strip16.generic", "layers.1.mlp.experts", "nvfp4(e2m1/1x16/ue4m3+f32)",
                           "fp8_block(e4m3/128x128/ue8m0)", "--kernel moe=moe.nvfp4.strip16.generic"})
    EXPECT_THAT(planned.error().to_string(), HasSubstr(part));
}

// gate, up and down are read by one kernel: each format is judged, and the message names the weight that is not fit.
TEST(GpuPlan, EveryWeightOfAnExpertIsJudged) {
  const std::string config = tiny_config_json({.wide = true});
  auto headers = synth_headers({.config_json = config, .format = SynthFormat::Bf16});
  ASSERT_TRUE(headers);
  for (TensorInfo& info : headers->tensors)
    if (info.name == "model.layers.2.mlp.experts.5.down_proj.weight") info.dtype = DType::F16;
  OpenedModel model;
  const nlohmann::json parsed = nlohmann::json::parse(headers->config_json);
  model.config = *parse_model_config(parsed);
  model.checkpoint = std::make_unique<Checkpoint>(*Checkpoint::from_headers(std::move(headers->tensors)));
  model.map = *map_weights(model.config, *model.checkpoint, model.quant);
  const auto planned = plan_opened(model, test_registry(), detect_cpu(), {});
  ASSERT_FALSE(planned);
  EXPECT_THAT(planned.error().to_string(), HasSubstr("model.layers.2.mlp.experts.5.down_proj.weight in f16"));
  EXPECT_TRUE(plan_opened(model, test_registry(), detect_cpu(), {.backend = "reference"}));
}

}  // namespace
}  // namespace plumb::testing
