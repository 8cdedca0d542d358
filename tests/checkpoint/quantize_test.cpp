#include "checkpoint/quantize.h"

#include <cstring>
#include <random>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/encode_rows.h"
#include "checkpoint/json_file.h"
#include "checkpoint/quant_config.h"
#include "support/folder.h"
#include "support/paths.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

using testing::TemporaryFolder;

Checkpoint open(const std::filesystem::path& folder) {
  auto checkpoint = Checkpoint::open(folder);
  EXPECT_TRUE(checkpoint) << checkpoint.error().to_string();
  return *std::move(checkpoint);
}

bool equal(const CheckpointTensor& a, const CheckpointTensor& b) {
  return a.info.dtype == b.info.dtype && a.info.shape == b.info.shape && a.info.bytes() == b.info.bytes() &&
         std::memcmp(a.data, b.data, a.info.bytes()) == 0;
}

// Every tensor of `want` is in `got` with the same bytes, but for names that end in `except`; and nothing else is.
void expect_same_tensors(const Checkpoint& got, const Checkpoint& want, std::string_view except) {
  size_t compared = 0;
  for (const CheckpointTensor& tensor : want.tensors()) {
    if (!except.empty() && tensor.info.name.ends_with(except)) continue;
    const CheckpointTensor* mine = got.find(tensor.info.name);
    ASSERT_NE(mine, nullptr) << tensor.info.name;
    EXPECT_TRUE(equal(*mine, tensor)) << tensor.info.name;
    ++compared;
  }
  EXPECT_EQ(compared, got.tensors().size());
  EXPECT_GT(compared, 300u);
}

void expect_same_as_sample(QuantizeTo to, const char* sample, std::string_view except) {
  PLUMB_REQUIRE_EXTRA_DATA(source, "models/tiny-glm-dsa");
  PLUMB_REQUIRE_EXTRA_DATA(want, std::string("models/") + sample);
  TemporaryFolder out;
  ThreadPool pool(2);
  // A small shard limit, so that shards and index are exercised too.
  const Status status =
      quantize_checkpoint({.source = source, .destination = out.path(), .to = to, .max_shard_bytes = 4'000'000}, pool);
  ASSERT_TRUE(status) << status.error().to_string();
  const Checkpoint mine = open(out.path());
  EXPECT_GT(mine.shard_names().size(), 3u);
  EXPECT_TRUE(mine.warnings().empty());
  expect_same_tensors(mine, open(want), except);
  EXPECT_TRUE(std::filesystem::exists(out / "tokenizer.json"));
  const auto quant = read_quant_config(out.path());
  ASSERT_TRUE(quant) << quant.error().to_string();
  const auto sample_quant = read_quant_config(want);
  ASSERT_TRUE(sample_quant);
  EXPECT_EQ(quant->excluded.patterns(), sample_quant->excluded.patterns());
  EXPECT_EQ(quant->scale_ue8m0, sample_quant->scale_ue8m0);
}

TEST(Quantize, Fp8BlocksEqualTheSampleByteForByte) { expect_same_as_sample(QuantizeTo::Fp8, "tiny-glm-dsa-fp8", ""); }

TEST(Quantize, Fp8PowersOfTwoEqualTheSampleByteForByte) {
  expect_same_as_sample(QuantizeTo::Fp8Ue8m0, "tiny-glm-dsa-fp8-ue8m0", "");
}

TEST(Quantize, Nvfp4WeightsAndScalesEqualTheSampleByteForByte) {
  expect_same_as_sample(QuantizeTo::Nvfp4, "tiny-glm-dsa-nvfp4", ".input_scale");
}

TEST(Quantize, CalibrationGivesInputScales) {
  PLUMB_REQUIRE_EXTRA_DATA(source, "models/tiny-glm-dsa");
  TemporaryFolder out;
  ThreadPool pool(2);
  // An expert without an entry takes the largest of its layer; up_proj reads what gate_proj reads.
  nlohmann::json calibration;
  for (int layer = 0; layer < 6; ++layer) {
    const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp";
    for (const char* projection : {".gate_proj", ".down_proj"}) {
      if (layer == 0) {
        calibration[mlp + projection] = 3.5;
      } else {
        calibration[mlp + ".experts.0" + projection] = 5.25;
        calibration[mlp + ".experts.3" + projection] = 10.5;
        calibration[mlp + ".shared_experts" + projection] = 7.0;
      }
    }
  }
  testing::write_file(out / "calibration.json", calibration.dump());
  const Status status = quantize_checkpoint({.source = source,
                                             .destination = out / "model",
                                             .to = QuantizeTo::Nvfp4,
                                             .calibration = out / "calibration.json"},
                                            pool);
  ASSERT_TRUE(status) << status.error().to_string();
  const Checkpoint mine = open(out / "model");
  const auto input_scale = [&](const std::string& module) {
    float value = 0;
    const CheckpointTensor* tensor = mine.find(module + ".input_scale");
    EXPECT_NE(tensor, nullptr) << module;
    if (tensor != nullptr) std::memcpy(&value, tensor->data, 4);
    return value;
  };
  EXPECT_EQ(input_scale("model.layers.0.mlp.up_proj"), static_cast<float>(3.5 / 2688.0));
  EXPECT_EQ(input_scale("model.layers.2.mlp.experts.0.down_proj"), static_cast<float>(5.25 / 2688.0));
  EXPECT_EQ(input_scale("model.layers.2.mlp.experts.7.up_proj"), static_cast<float>(10.5 / 2688.0));
  EXPECT_EQ(mine.shard_names().size(), 1u);
}

TEST(Quantize, AQuantisedSourceIsRefusedByName) {
  TemporaryFolder out;
  ThreadPool pool(1);
  const Status status =
      quantize_checkpoint({.source = testing::model_path(), .destination = out / "model", .to = QuantizeTo::Fp8}, pool);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::Unsupported);
  EXPECT_NE(status.error().what.find("NVFP4"), std::string::npos) << status.error().to_string();
  EXPECT_FALSE(std::filesystem::exists(out / "model"));
}

TEST(Quantize, AnExistingCheckpointIsNotOverwritten) {
  PLUMB_REQUIRE_EXTRA_DATA(source, "models/tiny-glm-dsa");
  TemporaryFolder out;
  ThreadPool pool(1);
  testing::write_file(out / "model.safetensors", "precious");
  const Status status = quantize_checkpoint({.source = source, .destination = out.path(), .to = QuantizeTo::Fp8}, pool);
  ASSERT_FALSE(status);
  EXPECT_EQ(testing::read_file(out / "model.safetensors"), "precious");
}

// The vectorisable encoder of blocks is the scalar encoding of formats.md 1.1 applied in the order of 2.3.
TEST(EncodeRows, Nvfp4BlockFollowsTheScalarEncoding) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  for (int trial = 0; trial < 2000; ++trial) {
    float values[16];
    for (float& value : values) value = trial % 7 == 0 ? 0.0f : round_bf16(normal(random));
    if (trial % 5 == 0) values[trial % 16] = 0.25f;  // ties in others
    const float global = nvfp4_global_scale(0.3f);
    uint8_t packed[8];
    const uint8_t code = encode_nvfp4_block(values, global, packed);
    float amax = absolute_maximum(values) / (6.0f * global);
    if (amax == 0) amax = 1.0f;
    EXPECT_EQ(code, f32_to_e4m3(std::min(std::max(amax, 0x1p-9f), 448.0f)));
    for (int i = 0; i < 16; ++i) {
      const uint8_t nibble = i % 2 == 0 ? packed[i / 2] & 15 : packed[i / 2] >> 4;
      EXPECT_EQ(nibble, f32_to_e2m1(values[i] / (e4m3_to_f32(code) * global)));
    }
  }
}

TEST(EncodeRows, ScalesOfZerosAreUsable) {
  EXPECT_EQ(fp8_block_scale(0.0f, false), 1e-10f);
  EXPECT_EQ(fp8_block_scale(0.0f, true), 0x1p-33f);
  EXPECT_GT(nvfp4_global_scale(0.0f), 0.0f);
  const float zeros[16] = {};
  uint8_t packed[8];
  EXPECT_EQ(encode_nvfp4_block(zeros, nvfp4_global_scale(0.0f), packed), 0x38);
  for (const uint8_t byte : packed) EXPECT_EQ(byte, 0);
}

}  // namespace
}  // namespace plumb
