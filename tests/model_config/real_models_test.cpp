// The bundled model and golden configurations, and the larger checkpoints of PLUMB_TEST_DATA when they are there.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model_config/load.h"
#include "support/paths.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using testing::load_model;

TEST(RealModels, EveryWeightOfEveryGivenModelIsFoundAndPlausible) {
  std::vector<fs::path> folders;
  folders.emplace_back(testing::model_path());
  for (const char* name : testing::kRandomModels)
    folders.emplace_back(testing::golden_path(std::string("random/") + name));
  for (const char* name : {"tiny-glm-dsa", "tiny-glm-dsa-fp8", "tiny-glm-dsa-fp8-ue8m0"}) {
    const std::string extra = testing::extra_data_path(std::string("models/") + name);
    if (!extra.empty()) folders.emplace_back(extra);
  }
  for (const fs::path& folder : folders) {
    const auto model = load_model(folder);
    ASSERT_TRUE(model) << model.error().to_string();
    for (const WeightSource* source : model->map.all()) {
      const Status status = check_weight_values(*source);
      EXPECT_TRUE(status) << folder << ": " << status.error().to_string();
    }
    for (const std::string& note : model->map.notes) ADD_FAILURE() << folder << ": " << note;
    EXPECT_TRUE(model->config.unknown_keys.empty()) << folder << ": " << model->config.unknown_keys.front();
  }
}

TEST(RealModels, FormatsAreThoseOfTheTensors) {
  PLUMB_REQUIRE_EXTRA_DATA(root, "models/tiny-glm-dsa-fp8");
  const auto format = [&](const char* name, auto pick) {
    auto model = load_model(testing::extra_data_path(std::string("models/") + name));
    EXPECT_TRUE(model) << model.error().to_string();
    return model ? pick(model->map).format : Format{};
  };
  const auto expert = [](const WeightMap& map) { return map.layers[2].experts[3].up_proj; };
  const auto query = [](const WeightMap& map) { return map.layers[2].q_b_proj; };
  const auto head = [](const WeightMap& map) { return map.lm_head; };
  EXPECT_EQ(format("tiny-glm-dsa", expert), kBf16);
  EXPECT_EQ(format("tiny-glm-dsa-fp8", expert), kFp8BlockF32);
  EXPECT_EQ(format("tiny-glm-dsa-fp8-ue8m0", expert), kFp8BlockUe8m0);
  EXPECT_EQ(format("tiny-glm-dsa-nvfp4", expert), kNvfp4);
  EXPECT_EQ(format("tiny-glm-dsa-fp8", query), kFp8BlockF32);
  EXPECT_EQ(format("tiny-glm-dsa-nvfp4", query), kBf16);
  EXPECT_EQ(format("tiny-glm-dsa-fp8", head), kBf16);
}

// Frequencies, scales and layer types of the golden report, which were compared with an installed transformers.
TEST(RealModels, RopeAndLayerTypesEqualTheGoldenReport) {
  std::ifstream file(testing::golden_path("random/report.json"));
  const nlohmann::json report = nlohmann::json::parse(file);
  int compared = 0;
  for (const auto& [name, want] : report.items()) {
    if (!want.is_object() || !want.contains("inv_freq")) continue;
    const auto config = read_model_config(testing::golden_path(std::string("random/") + name));
    ASSERT_TRUE(config) << config.error().to_string();
    EXPECT_EQ(rope_inv_freq(config->rope, config->qk_rope_head_dim), want["inv_freq"].get<std::vector<float>>())
        << name;
    EXPECT_EQ(config->softmax_scale(), want["softmax_scale"].get<float>()) << name;
    EXPECT_EQ(rope_cos_sin_factor(config->rope), want["attention_scaling"].get<double>()) << name;
    for (int i = 0; i < config->num_hidden_layers; ++i) {
      EXPECT_EQ(config->is_full_indexer(i), want["indexer_types"][static_cast<size_t>(i)] == "full") << name << i;
      EXPECT_EQ(config->is_sparse_mlp(i), want["mlp_layer_types"][static_cast<size_t>(i)] == "sparse") << name << i;
    }
    ++compared;
  }
  EXPECT_GE(compared, 11);
}

}  // namespace
}  // namespace plumb
