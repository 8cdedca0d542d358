// The given models and golden configurations, read from PLUMB_TEST_DATA.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/model_config.h"
#include "model/weight_map.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

class RealModels : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* root = std::getenv("PLUMB_TEST_DATA");
    if (root == nullptr) GTEST_SKIP() << "PLUMB_TEST_DATA is not set";
    root_ = root;
  }
  fs::path root_{};
};

struct Loaded {
  ModelConfig config;
  Checkpoint checkpoint;
  WeightMap map;
};

Result<Loaded> load(const fs::path& folder) {
  PLUMB_TRY(ModelConfig config, read_model_config(folder));
  PLUMB_TRY(QuantConfig quant, read_quant_config(folder));
  PLUMB_TRY(Checkpoint checkpoint, Checkpoint::open(folder));
  PLUMB_TRY(WeightMap map, map_weights(config, checkpoint, quant));
  return Loaded{std::move(config), std::move(checkpoint), std::move(map)};
}

TEST_F(RealModels, EveryWeightOfEveryGivenModelIsFoundAndPlausible) {
  std::vector<fs::path> folders;
  for (const char* name : {"tiny-glm-dsa", "tiny-glm-dsa-fp8", "tiny-glm-dsa-fp8-ue8m0", "tiny-glm-dsa-nvfp4"}) {
    folders.push_back(root_ / "models" / name);
  }
  for (const auto& entry : fs::directory_iterator(root_ / "golden" / "random")) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  ASSERT_GE(folders.size(), 15u);
  for (const fs::path& folder : folders) {
    const auto model = load(folder);
    ASSERT_TRUE(model) << model.error().to_string();
    for (const WeightSource* source : model->map.all()) {
      const Status status = check_weight_values(*source);
      EXPECT_TRUE(status) << folder << ": " << status.error().to_string();
    }
    for (const std::string& note : model->map.notes) ADD_FAILURE() << folder << ": " << note;
    EXPECT_TRUE(model->config.unknown_keys.empty()) << folder << ": " << model->config.unknown_keys.front();
  }
}

TEST_F(RealModels, FormatsAreThoseOfTheTensors) {
  const auto format = [&](const char* name, auto pick) {
    auto model = load(root_ / "models" / name);
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
TEST_F(RealModels, RopeAndLayerTypesEqualTheGoldenReport) {
  std::ifstream file(root_ / "golden" / "random" / "report.json");
  const nlohmann::json report = nlohmann::json::parse(file);
  int compared = 0;
  for (const auto& [name, want] : report.items()) {
    if (!want.is_object() || !want.contains("inv_freq")) continue;
    const auto config = read_model_config(root_ / "golden" / "random" / name);
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
