// The same numbers in another encoding or under other names give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runners.h"
#include "support/paths.h"
#include "tensor/encode.h"
#include "variant_files.h"

namespace plumb::testing {
namespace {

using Json = nlohmann::json;

std::vector<float> logits_of(const EditableCheckpoint& checkpoint, const std::vector<int32_t>& ids) {
  const TemporaryFolder folder;
  checkpoint.write(folder.path());
  auto runner = ModelRunner::open(
      folder.path(), test_registry(),
      {.plan = {.backend = "reference", .mtp = "off", .max_rows = 256, .max_sequences = 1, .max_context = 256}});
  EXPECT_TRUE(runner) << runner.error().to_string();
  if (!runner) return {};
  const auto logits = (*runner)->feed(ids, static_cast<int64_t>(ids.size()));
  EXPECT_TRUE(logits) << logits.error().to_string();
  return logits ? *logits : std::vector<float>{};
}

std::vector<int32_t> base_ids() { return GoldenFile(golden_path("random/base/golden.safetensors")).ints("input_ids"); }

EditableTensor tensor_of(const std::string& name, DType dtype, std::vector<int64_t> shape, const void* data,
                         size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  return {.info = {.name = name, .dtype = dtype, .shape = std::move(shape)}, .bytes = {begin, begin + bytes}};
}

bool is_quantised_linear(const std::string& name) {
  constexpr std::string_view kModules[] = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj",
                                           "wq_b",     "wk",       "gate_proj",          "up_proj",   "down_proj"};
  return std::any_of(std::begin(kModules), std::end(kModules),
                     [&](std::string_view module) { return name.ends_with("." + std::string(module) + ".weight"); });
}

// E4M3 with powers of two as scales; the BF16 twin holds exactly the decoded numbers.
struct Fp8Twins {
  EditableCheckpoint bf16{golden_path("random/base")};
  EditableCheckpoint fp8{golden_path("random/base")};
};

// Blocks of `block` rows and all columns (below 128 here); later blocks get coarser scales, so that none can be
// mistaken for its neighbour. `block` 0: one scale for the tensor.
EditableTensor quantise(EditableTensor& bf16, EditableTensor& fp8, int64_t block, const std::string& suffix) {
  const int64_t n = bf16.info.shape[0];
  const int64_t k = bf16.info.shape[1];
  std::vector<uint16_t> values(bf16.bytes.size() / 2);
  std::memcpy(values.data(), bf16.bytes.data(), bf16.bytes.size());
  float amax = 0;
  for (const uint16_t v : values) amax = std::max(amax, std::fabs(bf16_to_f32(v)));
  std::vector<float> scales;
  std::vector<uint8_t> codes;
  for (int64_t row = 0; row < n; ++row) {
    const int64_t at = block == 0 ? 0 : row / block;
    if (at == static_cast<int64_t>(scales.size()))
      scales.push_back(std::exp2(std::ceil(std::log2(amax / 448)) + static_cast<float>(at)));
    for (int64_t i = row * k; i < (row + 1) * k; ++i) {
      uint16_t& v = values[static_cast<size_t>(i)];
      codes.push_back(f32_to_e4m3(bf16_to_f32(v) / scales.back()));
      v = f32_to_bf16(e4m3_to_f32(codes.back()) * scales.back());
    }
  }
  std::memcpy(bf16.bytes.data(), values.data(), bf16.bytes.size());
  const std::string name = fp8.info.name;
  fp8 = tensor_of(name, DType::F8E4M3, {n, k}, codes.data(), codes.size());
  std::vector<int64_t> shape;
  if (block != 0) shape = {static_cast<int64_t>(scales.size()), (k + 127) / 128};
  return tensor_of(name + suffix, DType::F32, shape, scales.data(), scales.size() * 4);
}

void make_fp8(Fp8Twins& twins, const std::string& suffix, int64_t block) {
  std::vector<EditableTensor> scales;
  for (EditableTensor& tensor : twins.fp8.tensors)
    if (is_quantised_linear(tensor.info.name))
      scales.push_back(quantise(*twins.bf16.find(tensor.info.name), tensor, block, suffix));
  ASSERT_FALSE(scales.empty());
  for (EditableTensor& scale : scales) twins.fp8.tensors.push_back(std::move(scale));
}

TEST(Formats, Fp8BlocksEqualTheirBf16Twin) {
  Fp8Twins twins;
  make_fp8(twins, "_scale_inv", 128);
  twins.fp8.config()["quantization_config"] = {
      {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  EXPECT_EQ(logits_of(twins.fp8, base_ids()), logits_of(twins.bf16, base_ids()));
}

TEST(Formats, Fp8OneScalePerTensorEqualsItsBf16Twin) {
  Fp8Twins twins;
  make_fp8(twins, "_scale", 0);
  twins.fp8.config()["quantization_config"] = {{"quant_method", "modelopt"},
                                               {"quant_algo", "FP8"},
                                               {"ignore", {"lm_head", "*mlp.gate", "*indexer.weights_proj"}}};
  EXPECT_EQ(logits_of(twins.fp8, base_ids()), logits_of(twins.bf16, base_ids()));
}

TEST(Formats, StackedExpertsEqualSeparateOnes) {
  EditableCheckpoint separate(golden_path("random/base"));
  EditableCheckpoint stacked(golden_path("random/base"));
  const std::vector<float> want = logits_of(separate, base_ids());
  const int experts = separate.config().at("n_routed_experts");
  const int layers = separate.config().at("num_hidden_layers");
  std::erase_if(stacked.tensors,
                [](const EditableTensor& t) { return t.info.name.find(".experts.") != std::string::npos; });
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    if (separate.find(prefix + "0.up_proj.weight") == nullptr) continue;
    std::vector<std::byte> gate_up;
    std::vector<std::byte> down;
    for (int e = 0; e < experts; ++e) {
      const std::string expert = prefix + std::to_string(e) + ".";
      for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
        const auto& bytes = separate.find(expert + part)->bytes;
        gate_up.insert(gate_up.end(), bytes.begin(), bytes.end());
      }
      const auto& bytes = separate.find(expert + "down_proj.weight")->bytes;
      down.insert(down.end(), bytes.begin(), bytes.end());
    }
    const auto shape = separate.find(prefix + "0.up_proj.weight")->info.shape;  // [inter, hidden]
    stacked.tensors.push_back(tensor_of(prefix + "gate_up_proj", DType::BF16, {experts, 2 * shape[0], shape[1]},
                                        gate_up.data(), gate_up.size()));
    stacked.tensors.push_back(
        tensor_of(prefix + "down_proj", DType::BF16, {experts, shape[1], shape[0]}, down.data(), down.size()));
  }
  EXPECT_EQ(logits_of(stacked, base_ids()), want);
}

// compressed-tensors stores the reciprocal of ModelOpt's global scale: with powers of two both are exact.
TEST(Formats, CompressedTensorsEqualsModelOpt) {
  EditableCheckpoint modelopt(model_path());
  const auto change_scale = [](EditableTensor& tensor, auto change) {
    float value = 0;
    std::memcpy(&value, tensor.bytes.data(), sizeof value);
    value = change(value);
    std::memcpy(tensor.bytes.data(), &value, sizeof value);
  };
  for (EditableTensor& tensor : modelopt.tensors)
    if (tensor.info.name.ends_with("weight_scale_2") || tensor.info.name.ends_with("input_scale"))
      change_scale(tensor, [](float v) { return std::exp2(std::round(std::log2(v))); });
  EditableCheckpoint compressed(model_path());
  compressed.tensors = modelopt.tensors;
  const auto rename = [](std::string& name, const std::string& from, const std::string& to) {
    if (!name.ends_with(from)) return false;
    name.replace(name.size() - from.size(), from.size(), to);
    return true;
  };
  Json ignored = {"lm_head", "re:.*self_attn.*", "re:.*mlp\\.gate$", "re:model\\.layers\\.6\\..*"};
  for (EditableTensor& tensor : compressed.tensors) {
    std::string& name = tensor.info.name;
    if (tensor.info.dtype == DType::U8) rename(name, ".weight", ".weight_packed");
    if (!rename(name, ".weight_scale_2", ".weight_global_scale") &&
        !rename(name, ".input_scale", ".input_global_scale"))
      continue;
    change_scale(tensor, [](float v) { return 1 / v; });
    tensor.info.shape = {1};
  }
  const Json half{{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}};
  Json input = half;
  input["dynamic"] = "local";
  compressed.config()["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"format", "nvfp4-pack-quantized"},
      {"ignore", ignored},
      {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", half}, {"input_activations", input}}}}}};
  const std::vector<int32_t> ids = golden_prompt("multi_turn").ids;
  EXPECT_EQ(logits_of(compressed, ids), logits_of(modelopt, ids));
}

}  // namespace
}  // namespace plumb::testing
