// Quantisation metadata of the three producers (formats.md 2.4, 2.9, 3.1, 3.3).
#include "checkpoint/quant_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace plumb {
namespace {

using nlohmann::json;

json fp8_config() {
  return {{"quantization_config",
           {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}},
            {"modules_to_not_convert", {"lm_head", "model.layers.0.mlp.gate"}}}}};
}

json hf_nvfp4() {
  return {{"producer", {{"name", "modelopt"}}},
          {"quantization",
           {{"quant_algo", "NVFP4"},
            {"kv_cache_quant_algo", "FP8"},
            {"group_size", 16},
            {"exclude_modules", {"lm_head", "model.layers.1.*"}}}}};
}

json config_nvfp4() {
  const json half{{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  return {{"quantization_config",
           {{"quant_method", "modelopt"},
            {"quant_algo", "NVFP4"},
            {"ignore", {"lm_head", "model.layers.1.*"}},
            {"config_groups", {{"group_0", {{"input_activations", half}, {"weights", half}, {"targets", {"Linear"}}}}}},
            {"kv_cache_scheme", {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}}}}}};
}

json compressed(const char* format, const json& weights) {
  return {{"quantization_config",
           {{"quant_method", "compressed-tensors"},
            {"format", format},
            {"ignore", {"lm_head", "re:.*self_attn.*"}},
            {"config_groups",
             {{"group_0",
               {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", {{"dynamic", "local"}}}}}}}}}};
}

QuantConfig parsed(const json& config, const json* hf = nullptr) {
  auto quant = parse_quant_config(config, hf);
  EXPECT_TRUE(quant) << quant.error().to_string();
  return quant ? *quant : QuantConfig{};
}

std::string refusal(const json& config, const json* hf = nullptr) {
  const auto quant = parse_quant_config(config, hf);
  EXPECT_FALSE(quant) << config.dump();
  return quant ? "" : quant.error().to_string();
}

TEST(QuantConfig, AbsentMeansNone) {
  EXPECT_EQ(parsed(json::object()).method, QuantMethod::None);
  EXPECT_EQ(parsed({{"quantization_config", nullptr}}).method, QuantMethod::None);
}

TEST(QuantConfig, Fp8Blocks) {
  QuantConfig quant = parsed(fp8_config());
  EXPECT_EQ(quant.expected_format("model.layers.0.mlp.down_proj"), kFp8BlockF32);
  EXPECT_EQ(quant.expected_format("model.layers.0.mlp.gate"), std::nullopt);
  EXPECT_EQ(quant.expected_format("model.layers.0.mlp.gate_proj"), kFp8BlockF32);
  json config = fp8_config();
  config["quantization_config"]["scale_fmt"] = "ue8m0";
  EXPECT_EQ(parsed(config).expected_format("model.layers.0.mlp.down_proj"), kFp8BlockUe8m0);
}

TEST(QuantConfig, BothModelOptFilesMustAgree) {
  const json hf = hf_nvfp4();
  const QuantConfig both = parsed(config_nvfp4(), &hf);
  EXPECT_EQ(both.expected_format("model.layers.12.mlp.up_proj"), kNvfp4);
  EXPECT_EQ(both.expected_format("model.layers.1.mlp.up_proj"), std::nullopt);
  EXPECT_EQ(both.kv_cache, "FP8");
  EXPECT_EQ(parsed(json::object(), &hf).expected_format("model.layers.2.x"), kNvfp4);
  json other = hf;
  other["quantization"]["exclude_modules"].push_back("model.layers.2.*");
  EXPECT_NE(refusal(config_nvfp4(), &other).find("model.layers.2.*"), std::string::npos);
  other = hf;
  other["quantization"]["quant_algo"] = "FP8";
  EXPECT_NE(refusal(config_nvfp4(), &other).find("hf_quant_config.json: FP8"), std::string::npos);
  other = hf;
  other["quantization"]["kv_cache_quant_algo"] = nullptr;
  EXPECT_NE(refusal(config_nvfp4(), &other).find("KV cache"), std::string::npos);
  EXPECT_NE(refusal(fp8_config(), &hf).find("disagree"), std::string::npos);
}

TEST(QuantConfig, MixedPrecisionByLayer) {
  json hf = hf_nvfp4();
  hf["quantization"] = {{"quant_algo", "MIXED_PRECISION"},
                        {"quantized_layers",
                         {{"model.layers.0.mlp.up_proj", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
                          {"model.layers.1.self_attn.o_proj", {{"quant_algo", "FP8"}}}}}};
  const QuantConfig quant = parsed(json::object(), &hf);
  EXPECT_EQ(quant.expected_format("model.layers.0.mlp.up_proj"), kNvfp4);
  EXPECT_EQ(quant.expected_format("model.layers.1.self_attn.o_proj"), kFp8Tensor);
  EXPECT_EQ(quant.expected_format("model.layers.1.self_attn.q_a_proj"), std::nullopt);
}

TEST(QuantConfig, CompressedTensors) {
  const json nvfp4{{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}};
  const QuantConfig quant = parsed(compressed("nvfp4-pack-quantized", nvfp4));
  EXPECT_EQ(quant.expected_format("model.layers.0.mlp.up_proj"), kNvfp4);
  EXPECT_EQ(quant.expected_format("model.layers.0.self_attn.o_proj"), std::nullopt);
  EXPECT_EQ(quant.groups.front().activations, ActivationScheme::Static);
  const auto format = [](const char* strategy, const json& more) {
    json weights{{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}};
    weights.update(more);
    return parsed(compressed("float-quantized", weights)).expected_format("model.layers.0.mlp.up_proj");
  };
  EXPECT_EQ(format("tensor", json::object()), kFp8Tensor);
  EXPECT_EQ(format("channel", json::object()), kFp8Channel);
  EXPECT_EQ(format("block", {{"block_structure", {128, 128}}}), kFp8BlockF32);
}

TEST(QuantConfig, WhatWeDoNotRunIsRefusedByName) {
  for (const char* algorithm : {"NVFP4_AWQ", "NVFP4_SVD", "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8", "W4A16_AWQ", "W4A8_AWQ",
                                "W8A16", "W8A8_SQ_PER_CHANNEL", "MXFP8", "FP8_PB_WO", "FP8_PB_REAL", "SOMETHING_NEW"}) {
    json hf = hf_nvfp4();
    hf["quantization"]["quant_algo"] = algorithm;
    EXPECT_NE(refusal(json::object(), &hf).find(algorithm), std::string::npos);
  }
  for (const char* method : {"gptq", "awq", "bitsandbytes", "mxfp4"}) {
    EXPECT_NE(refusal({{"quantization_config", {{"quant_method", method}}}}).find(method), std::string::npos);
  }
  const auto changed = [](json config, const char* key, const json& value) {
    config["quantization_config"][key] = value;
    return refusal(config);
  };
  EXPECT_NE(changed(fp8_config(), "weight_block_size", {64, 64}).find("64"), std::string::npos);
  EXPECT_NE(changed(fp8_config(), "weight_block_size", nullptr).find("weight_block_size"), std::string::npos);
  EXPECT_NE(changed(fp8_config(), "activation_scheme", "static").find("static"), std::string::npos);
  EXPECT_NE(changed(fp8_config(), "fmt", "e5m2").find("e5m2"), std::string::npos);
  EXPECT_NE(changed(fp8_config(), "scale_fmt", "ue4m3").find("ue4m3"), std::string::npos);
  EXPECT_NE(changed(fp8_config(), "modules_to_not_convert", "lm_head").find("list"), std::string::npos);
  const json nvfp4{{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}};
  EXPECT_NE(changed(compressed("nvfp4-pack-quantized", nvfp4), "format", "mxfp4-pack-quantized").find("mxfp4"),
            std::string::npos);
  EXPECT_NE(changed(compressed("nvfp4-pack-quantized", nvfp4), "transform_config", {{"config_groups", {{"R1", 1}}}})
                .find("transform"),
            std::string::npos);
  EXPECT_NE(changed(compressed("nvfp4-pack-quantized", nvfp4), "ignore", {"re:("}).find("regular expression"),
            std::string::npos);
  EXPECT_NE(changed(compressed("nvfp4-pack-quantized", nvfp4), "config_groups", json::array()).find("config_groups"),
            std::string::npos);
}

bool matches(const char* pattern, std::string_view module) {
  const auto patterns = ModulePatterns::compile({pattern});
  EXPECT_TRUE(patterns);
  return patterns && patterns->matches(module);
}

TEST(ModulePatterns, EachKindOfPatternReadsNarrowly) {
  const char* module = "model.layers.1.self_attn.q_a_proj";
  const char* eleven = "model.layers.11.self_attn.q_a_proj";
  for (const char* pattern :
       {"model.layers.1.*", "model.layers.1.self_attn*", "model.layers.1", "model.layers.1.self_attn", "q_a_proj",
        "*q_a_proj", "model.language_model.layers.1.*", "language_model.model.layers.1.self_attn",
        "re:.*layers\\.1\\..*", "re:model.language_model.layers.1\\.",
        "model.layers.1.self_attn.fused_qkv_a_proj_with_mqa", "model.layers.[01].*", "model.layers.?.*",
        "model.layers.1.self_attn.q_a_proj.weight"}) {
    EXPECT_TRUE(matches(pattern, module)) << pattern;
    EXPECT_FALSE(matches(pattern, "model.layers.12.mlp.down_proj")) << pattern;
  }
  for (const char* pattern : {"model.layers.1.*", "model.layers.1", "model.language_model.layers.1.*",
                              "model.layers.?.*", "re:model.layers.1\\."}) {
    EXPECT_FALSE(matches(pattern, eleven)) << pattern;
  }
  EXPECT_TRUE(matches("model.layers.1*", eleven));  // what the glob says
  EXPECT_FALSE(matches("a_proj", module));
  EXPECT_FALSE(matches("", module));
  EXPECT_FALSE(matches("gate", "model.layers.1.mlp.gate_proj"));
  EXPECT_TRUE(matches("gate", "model.layers.1.mlp.gate"));
  EXPECT_TRUE(matches("*.mlp.gate_up_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(matches("model.layers.[!2].*", module));
  EXPECT_FALSE(matches("model.layers.[2-9].*", module));
}

// A pattern that would take exponential time ends at a limit: without one this test would not end.
TEST(ModulePatterns, HostilePatternsEnd) {
  const std::string name(200, 'a');
  EXPECT_FALSE(matches("re:(a+)+$x", name));
  EXPECT_FALSE(matches("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", name));
}

}  // namespace
}  // namespace plumb
