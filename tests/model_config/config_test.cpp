// config.json in all its published forms, and the ones that must be refused (model.md section 1; field-faults sections
// 1, 4).
#include "model/model_config.h"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/synth.h"
#include "support/folder.h"

namespace plumb {
namespace {

using nlohmann::json;

json tiny() { return json::parse(tiny_config_json()); }

// GLM-5.2 as published, apart from keys that the defaults give.
json glm52() {
  return {{"architectures", {"GlmMoeDsaForCausalLM"}},
          {"model_type", "glm_moe_dsa"},
          {"num_hidden_layers", 78},
          {"max_position_embeddings", 1048576},
          {"rope_parameters", {{"rope_theta", 8000000}, {"rope_type", "default"}}},
          {"head_dim", 192},
          {"index_topk_freq", 4},
          {"index_skip_topk_offset", 3},
          {"index_topk_pattern", nullptr},
          {"index_share_for_mtp_iteration", true},
          {"moe_router_dtype", "float32"},
          {"num_nextn_predict_layers", 1},
          {"eos_token_id", {154820, 154827, 154829}},
          {"pad_token_id", 154820},
          {"bos_token_id", 0},
          {"mlp_bias", false},
          {"num_experts", 256},
          {"layer_types", json::array({"full_attention"})},
          {"transformers_version", "5.12.0"}};
}

json deepseek() {
  return {{"architectures", {"DeepseekV32ForCausalLM"}},
          {"model_type", "deepseek_v32"},
          {"attention_bias", false},
          {"first_k_dense_replace", 3},
          {"hidden_act", "silu"},
          {"hidden_size", 7168},
          {"index_head_dim", 128},
          {"index_n_heads", 64},
          {"index_topk", 2048},
          {"intermediate_size", 18432},
          {"kv_lora_rank", 512},
          {"max_position_embeddings", 163840},
          {"moe_intermediate_size", 2048},
          {"moe_layer_freq", 1},
          {"n_group", 8},
          {"n_routed_experts", 256},
          {"n_shared_experts", 1},
          {"norm_topk_prob", true},
          {"num_attention_heads", 128},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 61},
          {"num_key_value_heads", 128},
          {"num_nextn_predict_layers", 1},
          {"q_lora_rank", 1536},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling",
           {{"beta_fast", 32},
            {"beta_slow", 1},
            {"factor", 40},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0},
            {"original_max_position_embeddings", 4096},
            {"type", "yarn"}}},
          {"rope_theta", 10000},
          {"routed_scaling_factor", 2.5},
          {"scoring_func", "sigmoid"},
          {"tie_word_embeddings", false},
          {"topk_group", 4},
          {"topk_method", "noaux_tc"},
          {"torch_dtype", "bfloat16"},
          {"v_head_dim", 128},
          {"vocab_size", 129280},
          {"eos_token_id", 1}};
}

ModelConfig parsed(const json& config) {
  auto result = parse_model_config(config);
  EXPECT_TRUE(result) << result.error().to_string();
  return result ? *result : ModelConfig{};
}

// `config` with one key set, or removed by `erase`.
json with(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}
json without(json config, const char* key) {
  config.erase(key);
  return config;
}

void expect_refused(const json& config, std::string_view words) {
  const auto result = parse_model_config(config);
  ASSERT_FALSE(result) << "accepted, expected: " << words;
  EXPECT_NE(result.error().to_string().find(words), std::string::npos) << result.error().to_string();
  EXPECT_NE(result.error().what.find("config.json"), std::string::npos);
}

TEST(ModelConfig, Glm52) {
  const ModelConfig c = parsed(glm52());
  EXPECT_EQ(c.hidden_size, 6144);
  EXPECT_EQ(c.qk_head_dim(), 256);
  EXPECT_EQ(c.softmax_scale(), 0.0625f);
  EXPECT_EQ(c.rope.theta, 8e6);
  EXPECT_TRUE(c.indexer_rope_interleave);
  EXPECT_TRUE(c.index_share_for_mtp_iteration);
  EXPECT_TRUE(c.unknown_keys.empty());
  std::vector<int> full;
  for (int i = 0; i < 78; ++i) {
    if (c.is_full_indexer(i)) full.push_back(i);
    EXPECT_EQ(c.is_sparse_mlp(i), i >= 3);
  }
  EXPECT_EQ(full, (std::vector<int>{0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74}));
  EXPECT_EQ(c.eos_token_ids, (std::vector<int>{154820, 154827, 154829}));
}

TEST(ModelConfig, DeepseekV32) {
  const ModelConfig c = parsed(deepseek());
  EXPECT_EQ(c.model_type, ModelType::DeepseekV32);
  EXPECT_FALSE(c.indexer_rope_interleave);
  EXPECT_EQ(c.rope.type, RopeType::Yarn);
  EXPECT_NEAR(rope_softmax_factor(c.rope), 1.873854, 1e-6);
  EXPECT_NEAR(c.softmax_scale(), 0.135234, 1e-6);
  EXPECT_EQ(rope_cos_sin_factor(c.rope), 1.0);
  EXPECT_TRUE(c.notes.empty()) << c.notes.front();
  // This family has no published defaults: what is not written is not guessed.
  for (const char* key :
       {"hidden_size", "n_group", "topk_group", "index_topk", "rms_norm_eps", "first_k_dense_replace", "q_lora_rank"}) {
    expect_refused(without(deepseek(), key), key);
  }
}

TEST(ModelConfig, AnAbsentKeyTakesThePublishedDefaultAndSaysSo) {
  const ModelConfig c = parsed(without(tiny(), "index_topk"));
  EXPECT_EQ(c.index_topk, 2048);
  ASSERT_FALSE(c.notes.empty());
  EXPECT_NE(c.notes.front().find("'index_topk' is absent, 2048"), std::string::npos);
  EXPECT_EQ(parsed(with(tiny(), "index_topk", nullptr)).index_topk, 2048);  // null counts as absent
  EXPECT_EQ(parsed(without(tiny(), "eos_token_id")).eos_token_ids, std::vector<int>{1});
  EXPECT_EQ(parsed(with(tiny(), "eos_token_id", 7)).eos_token_ids, std::vector<int>{7});
  EXPECT_FALSE(parsed(without(tiny(), "num_nextn_predict_layers")).num_nextn_predict_layers.has_value());
}

TEST(ModelConfig, OtherArchitecturesAreRefusedByName) {
  json flash = glm52();
  flash["architectures"] = {"Glm5NextForConditionalGeneration"};
  flash["model_type"] = "glm5_next";
  expect_refused(flash, "Glm5NextForConditionalGeneration");
  EXPECT_EQ(parse_model_config(flash).error().code, Code::Unsupported);
  expect_refused(with(tiny(), "model_type", "deepseek_v3"), "deepseek_v3");
  expect_refused(with(tiny(), "architectures", {"LlamaForCausalLM"}), "LlamaForCausalLM");
  expect_refused(with(tiny(), "architectures", {"GlmMoeDsaForCausalLM", "X"}), "architectures");
  expect_refused(without(tiny(), "model_type"), "model_type");
  expect_refused(json::array(), "not a JSON object");
}

TEST(ModelConfig, IllTypedValuesAreShown) {
  for (const json& bad :
       {json("64"), json(64.5), json(-1), json(0), json(true), json(1e300), json(3000000000u), json::array()}) {
    expect_refused(with(tiny(), "hidden_size", bad), "'hidden_size' is");
  }
  expect_refused(with(tiny(), "norm_topk_prob", 1), "'norm_topk_prob'");
  expect_refused(with(tiny(), "rms_norm_eps", "1e-5"), "'rms_norm_eps'");
  expect_refused(with(tiny(), "rms_norm_eps", 0.0), "'rms_norm_eps'");
  expect_refused(with(tiny(), "eos_token_id", {1, "2"}), "'eos_token_id'");
  expect_refused(with(tiny(), "eos_token_id", 512), "vocab_size");
  expect_refused(with(tiny(), "num_hidden_layers", 100000), "num_hidden_layers");
}

TEST(ModelConfig, SizesThatContradictEachOther) {
  expect_refused(with(tiny(), "qk_head_dim", 40), "qk_head_dim");
  EXPECT_EQ(parsed(with(tiny(), "qk_head_dim", 32)).qk_head_dim(), 32);
  expect_refused(with(tiny(), "num_experts", 16), "num_experts");
  expect_refused(with(tiny(), "n_group", 3), "n_group");
  expect_refused(with(tiny(), "topk_group", 2), "topk_group");
  expect_refused(with(tiny(), "num_experts_per_tok", 9), "num_experts_per_tok");
  expect_refused(with(with(tiny(), "n_group", 8), "num_experts_per_tok", 1), "two experts");
  expect_refused(with(tiny(), "qk_rope_head_dim", 7), "even");
  expect_refused(with(tiny(), "index_head_dim", 4), "index_head_dim");
  EXPECT_EQ(parsed(with(without(tiny(), "n_routed_experts"), "num_local_experts", 8)).n_routed_experts, 8);
}

TEST(ModelConfig, BuiltInChoicesAreChecked) {
  expect_refused(with(tiny(), "scoring_func", "softmax"), "scoring_func");
  expect_refused(with(tiny(), "topk_method", "greedy"), "topk_method");
  expect_refused(with(tiny(), "hidden_act", "gelu"), "hidden_act");
  expect_refused(with(tiny(), "moe_layer_freq", 2), "moe_layer_freq");
  expect_refused(with(tiny(), "moe_router_dtype", "bfloat16"), "moe_router_dtype");
  expect_refused(with(tiny(), "q_lora_rank", nullptr), "'q_lora_rank' is null");
  expect_refused(with(tiny(), "mlp_bias", true), "mlp_bias");
  expect_refused(with(tiny(), "num_nextn_predict_layers", 2), "num_nextn_predict_layers");
}

TEST(ModelConfig, UnknownKeysAreTold) {
  const ModelConfig c = parsed(with(tiny(), "some_label", "x"));
  EXPECT_EQ(c.unknown_keys, std::vector<std::string>{"some_label"});
  for (const char* key : {"sliding_window", "attention_sink", "final_logit_softcapping", "query_pre_attn_scalar",
                          "rope_local_base_freq", "use_qk_norm", "index_rope_scale", "moe_capacity", "topk_scale",
                          "router_bias", "scale_emb", "residual_multiplier", "attn_logit_softcapping"}) {
    expect_refused(with(tiny(), key, 7), key);
    parsed(with(tiny(), key, nullptr));
    parsed(with(tiny(), key, false));
  }
}

TEST(ModelConfig, MlpTypes) {
  const ModelConfig c = parsed(with(tiny(), "mlp_layer_types", {"dense", "sparse", "sparse", "dense"}));
  EXPECT_TRUE(c.is_sparse_mlp(1));
  EXPECT_FALSE(c.is_sparse_mlp(3));
  expect_refused(with(tiny(), "mlp_layer_types", {"sparse", "dense"}), "mlp_layer_types");
  expect_refused(with(tiny(), "mlp_layer_types", {"sparse", "dense", "moe", "dense"}), "mlp_layer_types");
  EXPECT_FALSE(parsed(with(tiny(), "first_k_dense_replace", 100)).is_sparse_mlp(3));
}

// The list may have any order behind the layers that the count names; a file whose two keys disagree says nothing.
TEST(ModelConfig, MlpTypesAndTheirCountMustAgree) {
  const json list = {"sparse", "dense", "sparse", "dense"};
  expect_refused(with(tiny(), "mlp_layer_types", list), "'first_k_dense_replace' is 1");
  expect_refused(
      with(with(tiny(), "mlp_layer_types", {"dense", "dense", "sparse", "sparse"}), "first_k_dense_replace", 3),
      "begins with 2 dense layers");
  json only_list = with(tiny(), "mlp_layer_types", list);
  only_list.erase("first_k_dense_replace");
  EXPECT_TRUE(parsed(only_list).is_sparse_mlp(0));
}

std::string kinds(const json& config) {
  std::string text;
  for (const IndexerType type : parsed(config).indexer_types) text += type == IndexerType::Full ? 'F' : 'S';
  return text;
}

TEST(ModelConfig, IndexerLayersFromListPatternAndFrequency) {
  EXPECT_EQ(kinds(tiny()), "FFFF");
  EXPECT_EQ(kinds(with(tiny(), "index_topk_pattern", "FSFS")), "FSFS");
  EXPECT_EQ(kinds(with(tiny(), "index_topk_pattern", {"full", "shared", "shared", "full"})), "FSSF");
  EXPECT_EQ(kinds(with(tiny(), "indexer_types", {"full", "shared", "full", "shared"})), "FSFS");
  json config = with(tiny(), "num_hidden_layers", 8);
  config["index_topk_freq"] = 4;
  EXPECT_EQ(kinds(config), "FFSSSFSS");  // offset 2 by default: {0, 1, 5}
  config["index_topk_freq"] = 0;
  EXPECT_EQ(kinds(config), "FFFFFFFF");
  expect_refused(with(tiny(), "indexer_types", {"full", "shared", "full"}), "'indexer_types'");  // a pattern cut short
  expect_refused(with(tiny(), "index_topk_pattern", "FSF"), "'index_topk_pattern'");
  expect_refused(with(tiny(), "index_topk_pattern", "FSXF"), "'index_topk_pattern'");
  expect_refused(with(tiny(), "index_topk_pattern", "SFFF"), "layer 0");
  expect_refused(with(with(tiny(), "indexer_types", {"full", "shared", "full", "shared"}), "index_topk_freq", 1),
                 "disagree");
  expect_refused(
      with(with(tiny(), "indexer_types", {"full", "shared", "full", "shared"}), "index_topk_pattern", "FFFS"),
      "disagree");
}

// The trial configurations of field-faults section 1: one value of theta or a refusal, never a default.
TEST(ModelConfig, RopeThetaIsNeverDefaulted) {
  json base = without(tiny(), "rope_parameters");
  const json v5{{"rope_theta", 1000000}, {"rope_type", "default"}};
  EXPECT_EQ(parsed(with(base, "rope_theta", 1000000)).rope.theta, 1e6);
  EXPECT_EQ(parsed(with(base, "rope_parameters", v5)).rope.theta, 1e6);
  EXPECT_EQ(parsed(with(with(base, "rope_parameters", v5), "rope_theta", 1000000.0)).rope.theta, 1e6);
  EXPECT_EQ(parsed(with(with(base, "rope_theta", 50000.5), "rope_scaling", nullptr)).rope.theta, 50000.5);
  expect_refused(with(with(base, "rope_parameters", v5), "rope_theta", 10000), "rope_theta is");
  expect_refused(with(base, "rope_theta", "1000000"), "'rope_theta'");
  expect_refused(with(base, "rope_parameters", {{"rope_theta", "1e6"}}), "rope_theta");
  expect_refused(with(base, "rope_scaling", nullptr), "'rope_theta' is missing");
  expect_refused(base, "'rope_theta' is missing");
  expect_refused(with(base, "rope_theta", 0), "rope_theta");
  expect_refused(with(base, "rope_theta", nullptr), "'rope_theta' is missing");
}

TEST(ModelConfig, RopeTypesInBothForms) {
  json base = without(tiny(), "rope_parameters");
  const json yarn{{"type", "yarn"},
                  {"factor", 4.0},
                  {"original_max_position_embeddings", 128},
                  {"mscale", 1.0},
                  {"mscale_all_dim", 1.0}};
  json flat = yarn;
  flat["rope_theta"] = 10000.0;
  flat["rope_type"] = "yarn";
  flat.erase("type");
  const RopeSpec v4 = parsed(with(with(base, "rope_scaling", yarn), "rope_theta", 10000)).rope;
  const RopeSpec v5 = parsed(with(base, "rope_parameters", flat)).rope;
  EXPECT_EQ(v4, v5);
  EXPECT_EQ(v4.type, RopeType::Yarn);
  // The v5 object seen through the v4 alias: type default, no factor, no scaling.
  EXPECT_EQ(parsed(with(base, "rope_scaling", {{"rope_theta", 1e6}, {"rope_type", "default"}})).softmax_scale(),
            static_cast<float>(std::pow(32.0, -0.5)));
  json both =
      with(with(base, "rope_parameters", {{"rope_theta", 10000}, {"rope_type", "default"}}), "rope_scaling", yarn);
  expect_refused(both, "different rotations");
  for (const char* type : {"linear", "dynamic", "longrope", "llama3", "YARN"}) {
    expect_refused(with(with(base, "rope_scaling", {{"type", type}, {"factor", 2.0}}), "rope_theta", 10000), type);
  }
  const auto changed = [&](const char* key, const json& value) {
    return with(base, "rope_parameters", with(flat, key, value));
  };
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    expect_refused(changed(key, nullptr), key);
    expect_refused(changed(key, 0), key);
  }
  expect_refused(changed("attention_factor", 1.0), "attention_factor");
  expect_refused(changed("truncate", false), "truncate");
  expect_refused(changed("factor", nullptr), "factor");
  expect_refused(changed("factor", 0.5), "factor");
  expect_refused(changed("original_max_position_embeddings", nullptr), "original_max_position_embeddings");
  expect_refused(changed("partial_rotary_factor", 0.5), "partial_rotary_factor");
  expect_refused(changed("full_attention", {{"rope_theta", 1}}), "layer type");
  expect_refused(with(base, "rope_parameters", {{"rope_theta", 1e4}, {"factor", 4}}), "factor");
  expect_refused(with(base, "rope_parameters", {1, 2}), "expected an object");
}

TEST(ModelConfig, IndexerInterleavingFollowsTheFamilyAndTheKeyWins) {
  EXPECT_TRUE(parsed(tiny()).indexer_rope_interleave);
  EXPECT_FALSE(parsed(with(tiny(), "indexer_rope_interleave", false)).indexer_rope_interleave);
  EXPECT_TRUE(parsed(with(deepseek(), "indexer_rope_interleave", true)).indexer_rope_interleave);
  EXPECT_TRUE(parsed(deepseek()).rope_interleave);
}

TEST(ModelConfig, SeveralProblemsAreToldTogether) {
  json config = with(with(tiny(), "hidden_size", "x"), "vocab_size", -5);
  const std::string text = parse_model_config(config).error().to_string();
  EXPECT_NE(text.find("hidden_size"), std::string::npos);
  EXPECT_NE(text.find("vocab_size"), std::string::npos);
}

TEST(ModelConfig, FilesThatAreNoConfiguration) {
  testing::TemporaryFolder folder;
  EXPECT_EQ(read_model_config(folder.path()).error().code, Code::NotFound);
  for (const char* text : {"", "{", "[]", "version https://git-lfs.github.com/spec/v1\n",
                           "{\"model_type\":\"glm_moe_dsa\",\"model_type\":\"x\"}"}) {
    testing::write_file(folder / "config.json", text);
    EXPECT_FALSE(read_model_config(folder.path())) << text;
  }
}

// 1 / theta^(2i/d) in the float32 steps of transformers: the power and its reciprocal are each rounded.
TEST(Rope, FrequenciesAreReciprocalsOfRoundedPowers) {
  const RopeSpec rope{.theta = 8e6};
  const std::vector<float> inv = rope_inv_freq(rope, 64);
  ASSERT_EQ(inv.size(), 32u);
  EXPECT_EQ(inv[0], 1.0f);
  for (size_t i = 0; i < 32; ++i) {
    const double exact = std::pow(8e6, -static_cast<double>(2 * i) / 64.0);
    EXPECT_NEAR(inv[i] / exact, 1.0, 2e-7) << i;
    EXPECT_EQ(inv[i], 1.0f / static_cast<float>(std::pow(8e6, static_cast<double>(static_cast<float>(2 * i) / 64.0f))))
        << i;
  }
}

TEST(GenerationConfig, ReadsSamplingWishes) {
  const auto g = parse_generation_config(
      {{"temperature", 1.0}, {"top_p", 0.95}, {"eos_token_id", {3, 4}}, {"do_sample", true}, {"num_beams", 4}});
  ASSERT_TRUE(g) << g.error().to_string();
  EXPECT_EQ(g->temperature, 1.0f);
  EXPECT_EQ(g->top_p, 0.95f);
  EXPECT_FALSE(g->top_k.has_value());
  EXPECT_EQ(g->eos_token_ids, (std::vector<int>{3, 4}));
  ASSERT_EQ(g->notes.size(), 1u);
  EXPECT_NE(g->notes.front().find("num_beams"), std::string::npos);
  for (const json& bad :
       {json{{"temperature", "hot"}}, json{{"temperature", -1}}, json{{"top_p", 1.5}}, json{{"top_k", 2.5}},
        json{{"eos_token_id", -1}}, json{{"do_sample", 1}}, json{{"repetition_penalty", 0}}, json::array()}) {
    EXPECT_FALSE(parse_generation_config(bad)) << bad.dump();
  }
  testing::TemporaryFolder folder;
  const auto none = read_generation_config(folder.path());
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->temperature.has_value());
}

}  // namespace
}  // namespace plumb
