#include "model/synth.h"

#include <cmath>
#include <cstring>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/thread_pool.h"
#include "model_config/load.h"
#include "support/folder.h"

namespace plumb {
namespace {

using testing::check_all_values;
using testing::load_model;
using testing::LoadedModel;
using testing::TemporaryFolder;

LoadedModel make(const std::filesystem::path& folder, const SynthSpec& spec) {
  ThreadPool pool(2);
  const Status status = synthesize(spec, folder, pool);
  EXPECT_TRUE(status) << status.error().to_string();
  auto model = load_model(folder);
  EXPECT_TRUE(model) << model.error().to_string();
  const Status values = check_all_values(model->map);
  EXPECT_TRUE(values) << values.error().to_string();
  return *std::move(model);
}

std::vector<float> decode(const WeightSource& source) {
  const EncodedSource encoded = encode_source(source);
  std::vector<float> values(static_cast<size_t>(source.n * source.k));
  for (int64_t r = 0; r < source.n; ++r) decode_row(encoded.matrix, r, values.data() + r * source.k);
  return values;
}

// Root mean square of the difference over that of `want`.
double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(difference / size);
}

TEST(Synth, EveryFormatHoldsTheSameWeightsWithinItsRounding) {
  const std::string config = tiny_config_json({.mtp = true, .wide = true});
  TemporaryFolder plain_folder;
  const LoadedModel plain = make(plain_folder.path(), {.config_json = config});
  ASSERT_TRUE(plain.map.mtp.has_value());
  const struct {
    const char* name;
    Format format;
    double bound;
  } cases[] = {{"fp8", kFp8BlockF32, 0.04},      {"fp8-ue8m0", kFp8BlockUe8m0, 0.04},
               {"fp8-tensor", kFp8Tensor, 0.04}, {"ct-fp8-block", kFp8BlockF32, 0.04},
               {"nvfp4", kNvfp4, 0.14},          {"ct-nvfp4", kNvfp4, 0.14}};
  for (const auto& [name, format, bound] : cases) {
    TemporaryFolder folder;
    const LoadedModel model = make(folder.path(), {.config_json = config, .format = *synth_format_from_name(name)});
    const WeightSource& source = model.map.layers[2].experts[5].up_proj;
    EXPECT_EQ(source.format, format) << name;
    const double error = relative_error(decode(source), decode(plain.map.layers[2].experts[5].up_proj));
    EXPECT_LT(error, bound) << name;
    EXPECT_GT(error, bound / 10) << name;
    EXPECT_TRUE(model.map.notes.empty()) << name << ": " << model.map.notes.front();
    EXPECT_EQ(decode(model.map.embed_tokens), decode(plain.map.embed_tokens)) << name;
  }
}

// The same weights packaged by two producers decode to the same bits (one read the other's convention wrongly,
// elsewhere).
TEST(Synth, PackagingsOfOneFormatDecodeBitForBitAlike) {
  const std::string config = tiny_config_json({.wide = true});
  TemporaryFolder a, b;
  const LoadedModel fp8 = make(a.path(), {.config_json = config, .format = SynthFormat::Fp8});
  const LoadedModel ct = make(b.path(), {.config_json = config, .format = SynthFormat::Fp8BlockCompressed});
  const auto all_fp8 = fp8.map.all(), all_ct = ct.map.all();
  ASSERT_EQ(all_fp8.size(), all_ct.size());
  for (size_t i = 0; i < all_fp8.size(); ++i) {
    EXPECT_EQ(all_fp8[i]->format, all_ct[i]->format);
    EXPECT_EQ(decode(*all_fp8[i]), decode(*all_ct[i])) << all_fp8[i]->name;
  }
}

TEST(Synth, StackedExpertsAreTheSameExperts) {
  const std::string config = tiny_config_json({.mtp = true});
  TemporaryFolder a, b;
  const LoadedModel single = make(a.path(), {.config_json = config});
  const LoadedModel stacked = make(b.path(), {.config_json = config, .stacked_experts = true});
  EXPECT_LT(stacked.checkpoint.tensors().size(), single.checkpoint.tensors().size());
  const auto all_single = single.map.all(), all_stacked = stacked.map.all();
  ASSERT_EQ(all_single.size(), all_stacked.size());
  for (size_t i = 0; i < all_single.size(); ++i) {
    EXPECT_EQ(decode(*all_single[i]), decode(*all_stacked[i])) << all_single[i]->name;
  }
}

TEST(Synth, ShardsThreadsAndSeedDecideNothingButWhatTheySay) {
  TemporaryFolder a, b, c;
  const std::string config = tiny_config_json();
  const LoadedModel one = make(a.path(), {.config_json = config, .seed = 5});
  const LoadedModel sharded = make(b.path(), {.config_json = config, .seed = 5, .max_shard_bytes = 100'000});
  const LoadedModel other = make(c.path(), {.config_json = config, .seed = 6});
  EXPECT_GT(sharded.checkpoint.shard_names().size(), 3u);
  for (const CheckpointTensor& tensor : one.checkpoint.tensors()) {
    const CheckpointTensor* same = sharded.checkpoint.find(tensor.info.name);
    ASSERT_NE(same, nullptr);
    EXPECT_EQ(std::memcmp(same->data, tensor.data, tensor.info.bytes()), 0) << tensor.info.name;
  }
  EXPECT_NE(decode(one.map.lm_head), decode(other.map.lm_head));
  EXPECT_NE(one.checkpoint.identity_hash(), sharded.checkpoint.identity_hash());
}

TEST(Synth, HeadersAreThoseOfTheWrittenFiles) {
  for (const char* name : {"bf16", "fp8", "fp8-ue8m0", "fp8-tensor", "ct-fp8-block", "nvfp4", "ct-nvfp4"}) {
    TemporaryFolder folder;
    const SynthSpec spec{.config_json = tiny_config_json({.mtp = true, .shared_indexers = true, .wide = true}),
                         .format = *synth_format_from_name(name)};
    const LoadedModel model = make(folder.path(), spec);
    const auto headers = synth_headers(spec);
    ASSERT_TRUE(headers);
    ASSERT_EQ(headers->tensors.size(), model.checkpoint.tensors().size()) << name;
    for (const TensorInfo& info : headers->tensors) {
      const CheckpointTensor* written = model.checkpoint.find(info.name);
      ASSERT_NE(written, nullptr) << info.name;
      EXPECT_EQ(written->info.type_string(), info.type_string()) << info.name;
    }
  }
}

// GLM-5.2 at its real size, without its weights: tensor and parameter counts of model.md 1.6.
TEST(Synth, RealGlm52IsMappedFromHeadersAlone) {
  nlohmann::json config{{"model_type", "glm_moe_dsa"},
                        {"architectures", {"GlmMoeDsaForCausalLM"}},
                        {"max_position_embeddings", 1048576},
                        {"rope_parameters", {{"rope_theta", 8000000}, {"rope_type", "default"}}},
                        {"index_topk_freq", 4},
                        {"index_skip_topk_offset", 3},
                        {"num_nextn_predict_layers", 1},
                        {"eos_token_id", {154820, 154827, 154829}}};
  for (const auto& [name, tensors] : {std::pair("bf16", 59585u), std::pair("nvfp4", 0u)}) {
    const auto headers =
        synth_headers({.config_json = config.dump(), .format = *synth_format_from_name(name), .experts_only = true});
    ASSERT_TRUE(headers) << headers.error().to_string();
    const auto parsed = parse_model_config(nlohmann::json::parse(headers->config_json));
    ASSERT_TRUE(parsed) << parsed.error().to_string();
    const nlohmann::json hf =
        headers->hf_quant_config_json ? nlohmann::json::parse(*headers->hf_quant_config_json) : nlohmann::json();
    const auto quant = parse_quant_config(nlohmann::json::parse(headers->config_json), hf.is_null() ? nullptr : &hf);
    ASSERT_TRUE(quant) << quant.error().to_string();
    auto checkpoint = Checkpoint::from_headers(headers->tensors);
    ASSERT_TRUE(checkpoint);
    EXPECT_FALSE(checkpoint->has_data());
    const auto map = map_weights(*parsed, *checkpoint, *quant);
    ASSERT_TRUE(map) << map.error().to_string();
    ASSERT_TRUE(map->mtp.has_value());
    EXPECT_EQ(map->layers[77].experts.size(), 256u);
    if (tensors == 0) continue;
    EXPECT_EQ(checkpoint->tensors().size(), tensors);
    int64_t parameters = 0;
    for (const CheckpointTensor& tensor : checkpoint->tensors()) {
      if (!tensor.info.name.ends_with("correction_bias")) parameters += tensor.info.elements();
    }
    EXPECT_EQ(parameters, 753'329'921'024);
  }
}

TEST(Synth, WeightsLookLikeWeights) {
  TemporaryFolder folder;
  const LoadedModel model = make(folder.path(), {.config_json = tiny_config_json({.wide = true})});
  const std::vector<float> values = decode(model.map.layers[1].q_b_proj);
  double sum = 0, squares = 0;
  float largest = 0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
    largest = std::max(largest, std::fabs(value));
  }
  const double deviation = std::sqrt(squares / static_cast<double>(values.size()));
  EXPECT_NEAR(deviation * std::sqrt(static_cast<double>(model.map.layers[1].q_b_proj.k)), 1.0, 0.25);
  EXPECT_LT(std::fabs(sum / static_cast<double>(values.size())), deviation / 20);
  EXPECT_GT(largest, 4 * deviation);
}

}  // namespace
}  // namespace plumb
