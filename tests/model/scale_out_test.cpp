#include "model/scale_out.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/loaded_model.h"
#include "model/model_plan.h"
#include "model/synth.h"
#include "support/source_dir.h"

namespace plumb::testing {
namespace {

using ::testing::HasSubstr;

OpenedModel imagined(const char* name, SynthFormat format) {
  std::ifstream in(source_dir() + "/tests/data/configs/" + name + ".json");
  std::stringstream text;
  text << in.rdbuf();
  auto headers = synth_headers({.config_json = text.str(), .format = format});
  EXPECT_TRUE(headers) << headers.error().to_string();
  const nlohmann::json config = nlohmann::json::parse(headers->config_json);
  OpenedModel model;
  model.config = *parse_model_config(config);
  model.quant = *parse_quant_config(config, nullptr);
  model.checkpoint = std::make_unique<Checkpoint>(*Checkpoint::from_headers(std::move(headers->tensors)));
  model.map = *map_weights(model.config, *model.checkpoint, model.quant);
  return model;
}

// Of the data sheet, with links that cost nothing: what is left is bytes over bandwidth.
Machine bare_h200() {
  return {.device = "h200",
          .gpus = 8,
          .memory_bytes = int64_t{1} << 50,
          .bytes_per_s = 4.8e12,
          .flops = 1e18,
          .inside = {0, 1e18},
          .across = {0, 1e18}};
}

const ScaleLayout* find(const std::vector<ScaleLayout>& layouts, const std::string& name) {
  const auto it = std::ranges::find(layouts, name, &ScaleLayout::name);
  return it == layouts.end() ? nullptr : &*it;
}

class ScaleOut : public ::testing::Test {
 protected:
  const OpenedModel model_ = imagined("glm-5", SynthFormat::Fp8);
  const KvGeometry kv_ = cache_geometry(model_.config, {.kv = "fp8", .index_keys = "fp8"});

  std::vector<ScaleLayout> layouts(const Machine& machine, const ScaleQuestion& question) const {
    return scale_out(model_.config, model_.map, kv_, machine, question);
  }
};

// One decode step of GLM-5 in FP8 on 8 x H200, bytes counted by hand layer by layer: 7.7 GB of a GPU for one sequence
// at 4k (1.61 ms), 9.1 GB at 128k (1.90 ms), 114 GB for 64 at 32k (23.8 ms). That count holds kv_b in bf16 and the
// router in f32, 0.38 GB a GPU more than this checkpoint, and lets the index logits go through memory as well: 1.3 GB
// of the 114.
TEST_F(ScaleOut, AStepTakesTheTimeOfItsBytes) {
  const auto alone = [&](int64_t context) {
    return find(layouts(bare_h200(), {.machines = 1, .context = context}), "TP 8")->first_ms;
  };
  EXPECT_NEAR(alone(4096), 1.61 - 0.08, 0.02);
  EXPECT_NEAR(alone(131072), 1.90 - 0.08 - 0.01, 0.02);
  // As many sequences as a step of 23.8 ms allows.
  const auto many = layouts(bare_h200(), {.machines = 1, .context = 32768, .tpot_ms = 23.8});
  EXPECT_NEAR(static_cast<double>(find(many, "TP 8")->batch), 66, 2);
  EXPECT_THAT(find(many, "TP 8")->limit, HasSubstr("time a token"));
}

TEST_F(ScaleOut, LayoutsDivideWhatTheySay) {
  const auto found = layouts(bare_h200(), {.machines = 4, .context = 4096});
  const double one = find(found, "TP 1")->weight_bytes;
  EXPECT_EQ(find(found, "TP 1")->replicas, 32);
  const ScaleLayout& tp8 = *find(found, "TP 8");
  const ScaleLayout& stages = *find(found, "PP 4 x TP 8");
  EXPECT_EQ(tp8.replicas, 4);
  EXPECT_EQ(stages.replicas, 1);
  EXPECT_NEAR(stages.weight_bytes, tp8.weight_bytes / 4, 1);
  // Experts over 32 GPUs: a GPU has all of the rest.
  const ScaleLayout& wide = *find(found, "EP 32, attention by data");
  const ScaleLayout& less = *find(found, "EP 16, attention by data");
  const double experts = (less.weight_bytes - wide.weight_bytes) * 32;
  EXPECT_NEAR(wide.weight_bytes, one - experts * 31 / 32, one * 1e-6);
  EXPECT_EQ(find(found, "EP 64, attention by data"), nullptr);  // there are 32 GPUs
  for (size_t i = 1; i < found.size(); ++i) EXPECT_GE(found[i - 1].decode_rate, found[i].decode_rate);
}

TEST_F(ScaleOut, WhatDoesNotFitSaysSo) {
  Machine small = bare_h200();
  small.memory_bytes = int64_t{100} << 30;
  for (const ScaleLayout& l : layouts(small, {.machines = 1, .context = 32768})) {
    if (l.weight_bytes > static_cast<double>(small.memory_bytes))
      EXPECT_EQ(l.limit, "the weights do not fit") << l.name;
    else
      EXPECT_LE(l.batch * 32768, l.cache_tokens) << l.name;
  }
  EXPECT_EQ(find(layouts(small, {.machines = 1, .context = int64_t{1} << 20}), "TP 8")->limit,
            "no room for one context");
  EXPECT_EQ(find(layouts(bare_h200(), {.machines = 1, .tpot_ms = 0.5}), "TP 8")->limit,
            "one sequence is slower than asked");
}

TEST_F(ScaleOut, SlowLinksAreNamed) {
  Machine slow = bare_h200();
  slow.inside = {500, 1e9};
  EXPECT_THAT(find(layouts(slow, {.machines = 1, .context = 4096, .tpot_ms = 200}), "TP 8")->limit, HasSubstr("links"));
}

TEST(FittedLink, FindsLatencyAndRate) {
  // 20 us, and 2 * 7/8 * bytes over 100 GB/s.
  const auto link = fitted_link("1000000:37.5,12288:20.21504,100000000:1770", 8);
  ASSERT_TRUE(link) << link.error().to_string();
  EXPECT_NEAR(link->latency_us, 20, 0.01);
  EXPECT_NEAR(link->bytes_per_s, 100e9, 1e8);
  for (const char* wrong :
       {"", "12288:22", "12288:22,12288:23", "a:b,c:d", "12288:22;1:2", "1:-2,3:4", "10:5,20:4", "1:2,3:4x"})
    EXPECT_FALSE(fitted_link(wrong, 8)) << wrong;
}

TEST(MachineOf, KnowsTheProfilesItHasRatesFor) {
  EXPECT_TRUE(machine_of("rtx-pro-6000", 1, 8));
  const auto unknown = machine_of("cpu", 1, 8);
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().to_string(), HasSubstr("--device h200"));
}

}  // namespace
}  // namespace plumb::testing
