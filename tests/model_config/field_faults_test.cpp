// Faults of loading seen in the field (field-faults sections 1 and 3): each is impossible here, or found with its name.
#include <cmath>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/thread_pool.h"
#include "model/synth.h"
#include "model_config/load.h"
#include "support/folder.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::check_all_values;
using testing::load_model;
using testing::LoadedModel;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

// Every tensor of a folder as bytes, to be changed and written back.
struct Editable {
  TensorInfo info{};
  std::string bytes{};
};
using Tensors = std::vector<Editable>;

// A synthetic model whose tensors and configuration a test may spoil.
class FieldFaults : public ::testing::Test {
 protected:
  void make(SynthSpec spec) {
    ThreadPool pool(2);
    const Status status = synthesize(spec, folder(), pool);
    ASSERT_TRUE(status) << status.error().to_string();
  }
  fs::path folder() const { return folder_.path() / "model"; }

  void edit(const std::function<void(Tensors&)>& change) {
    Tensors tensors;
    {
      const auto file = SafetensorsFile::open(folder() / "model.safetensors");
      ASSERT_TRUE(file) << file.error().to_string();
      for (const TensorInfo& info : file->tensors()) {
        tensors.push_back({info, std::string(reinterpret_cast<const char*>(file->data(info)), info.bytes())});
      }
    }
    change(tensors);
    std::vector<TensorInfo> layout;
    for (const Editable& tensor : tensors) layout.push_back(tensor.info);
    auto writer = SafetensorsWriter::create(folder() / "model.safetensors", layout);
    ASSERT_TRUE(writer);
    for (const Editable& tensor : tensors) ASSERT_TRUE(writer->write(tensor.bytes.data(), tensor.bytes.size()));
    ASSERT_TRUE(writer->finish());
  }
  void edit_one(const std::string& name, const std::function<void(Editable&)>& change) {
    edit([&](Tensors& tensors) {
      int found = 0;
      for (Editable& tensor : tensors) {
        if (tensor.info.name != name) continue;
        change(tensor);
        ++found;
      }
      ASSERT_EQ(found, 1) << name;
    });
  }
  void remove(const std::function<bool(const std::string&)>& unwanted) {
    edit([&](Tensors& tensors) {
      const size_t before = tensors.size();
      std::erase_if(tensors, [&](const Editable& tensor) { return unwanted(tensor.info.name); });
      ASSERT_LT(tensors.size(), before);
    });
  }
  void edit_json(const char* name, const std::function<void(json&)>& change) {
    json document = json::parse(read_file(folder() / name));
    change(document);
    write_file(folder() / name, document.dump());
  }

  LoadedModel load() {
    auto model = load_model(folder());
    EXPECT_TRUE(model) << model.error().to_string();
    return *std::move(model);
  }
  void expect_refused(const std::vector<std::string>& words) {
    const auto model = load_model(folder());
    ASSERT_FALSE(model) << "loaded, expected: " << words.front();
    for (const std::string& word : words) {
      EXPECT_NE(model.error().to_string().find(word), std::string::npos)
          << "no '" << word << "' in: " << model.error().to_string();
    }
  }
  void expect_bad_value(const std::vector<std::string>& words) {
    const auto model = load_model(folder());
    const Status status = model ? check_all_values(model->map) : Status(model.error());
    ASSERT_FALSE(status) << "well, expected: " << words.front();
    for (const std::string& word : words) {
      EXPECT_NE(status.error().to_string().find(word), std::string::npos) << status.error().to_string();
    }
  }

 private:
  TemporaryFolder folder_{};
};

std::string joined(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += note + "\n";
  return text;
}

std::vector<float> decoded(const WeightSource& source) {
  const EncodedSource encoded = encode_source(source);
  std::vector<float> values(static_cast<size_t>(source.n * source.k));
  for (int64_t r = 0; r < source.n; ++r) decode_row(encoded.matrix, r, values.data() + r * source.k);
  return values;
}

const std::string kUp = "model.layers.2.mlp.experts.3.up_proj";
const std::string kGate = "model.layers.2.mlp.experts.3.gate_proj";

float as_float(const Editable& tensor) {
  float value = 0;
  std::memcpy(&value, tensor.bytes.data(), 4);
  return value;
}
void set_float(Editable& tensor, float value, size_t index = 0) {
  std::memcpy(tensor.bytes.data() + 4 * index, &value, 4);
}

// sglang 19948, 22300: scales are what the tensors hold, not what a back end would like.
TEST_F(FieldFaults, FreeScalesAreNeverTakenForPowersOfTwo) {
  make({.config_json = tiny_config_json({.wide = true}), .format = SynthFormat::Fp8});
  const LoadedModel model = load();
  EXPECT_EQ(model.map.layers[1].o_proj.format, kFp8BlockF32);
  EXPECT_FALSE(model.map.layers[1].o_proj.scale_is_pow2);
}

// sglang 29954, vllm 38083: config says ue8m0 and one scale has mantissa bits.
TEST_F(FieldFaults, OneFreeScaleUnderUe8m0IsRefusedByName) {
  make({.config_json = tiny_config_json({.wide = true}), .format = SynthFormat::Fp8});
  const std::string scale = "model.layers.1.self_attn.o_proj.weight_scale_inv";
  edit([](Tensors& tensors) {  // all scales powers of two, stored as F32: DeepSeek-V3.1's form
    for (Editable& tensor : tensors) {
      if (!tensor.info.name.ends_with("weight_scale_inv")) continue;
      for (size_t i = 0; i < tensor.bytes.size() / 4; ++i) set_float(tensor, 0.0009765625f, i);
    }
  });
  EXPECT_EQ(load().map.layers[1].o_proj.format, kFp8BlockF32);
  EXPECT_TRUE(load().map.layers[1].o_proj.scale_is_pow2);
  edit_json("config.json", [](json& config) { config["quantization_config"]["scale_fmt"] = "ue8m0"; });
  const LoadedModel model = load();
  EXPECT_EQ(model.map.layers[1].o_proj.format, kFp8BlockUe8m0);
  const EncodedSource encoded = encode_source(model.map.layers[1].o_proj);
  ASSERT_FALSE(encoded.scale_copy.empty());
  EXPECT_EQ(encoded.scale_copy.front(), std::byte{117});
  edit_one(scale, [](Editable& tensor) { set_float(tensor, 1.5f); });
  expect_refused({scale, "ue8m0", "power of two"});
}

TEST_F(FieldFaults, ScalesAsBf16OrExponentBytesAreTheSameScales) {
  make({.config_json = tiny_config_json({.wide = true}), .format = SynthFormat::Fp8Ue8m0});
  const std::vector<float> want = decoded(load().map.layers[1].o_proj);
  edit_one("model.layers.1.self_attn.o_proj.weight_scale_inv", [](Editable& tensor) { tensor.info.dtype = DType::U8; });
  EXPECT_EQ(decoded(load().map.layers[1].o_proj), want);
  edit_one("model.layers.1.self_attn.o_proj.weight_scale_inv", [](Editable& tensor) {
    std::string wide;
    for (const char byte : tensor.bytes) {  // BF16: exponent field shifted by 7
      const auto code = static_cast<uint16_t>(static_cast<uint8_t>(byte) << 7);
      wide.append(reinterpret_cast<const char*>(&code), 2);
    }
    tensor.info.dtype = DType::BF16;
    tensor.bytes = wide;
  });
  EXPECT_EQ(decoded(load().map.layers[1].o_proj), want);
}

// vllm 54974: each of gate and up keeps its own global scale.
TEST_F(FieldFaults, GateAndUpKeepTheirOwnGlobalScale) {
  make({.config_json = tiny_config_json(), .format = SynthFormat::Nvfp4, .experts_only = true});
  const LoadedModel before = load();
  const std::vector<float> up = decoded(before.map.layers[2].experts[3].up_proj);
  edit_one(kUp + ".weight_scale_2", [](Editable& tensor) { set_float(tensor, 4 * as_float(tensor)); });
  const LoadedModel after = load();
  EXPECT_EQ(after.map.layers[2].experts[3].up_proj.global_scale,
            4 * after.map.layers[2].experts[3].gate_proj.global_scale);
  const std::vector<float> changed = decoded(after.map.layers[2].experts[3].up_proj);
  for (size_t i = 0; i < up.size(); ++i) ASSERT_EQ(changed[i], 4 * up[i]);
  EXPECT_NE(joined(after.map.notes).find("1 of 24 gate/up pairs have different global scales (up to 4 times)"),
            std::string::npos)
      << joined(after.map.notes);
}

// vllm 54444, 52501: an absent scale is an error with its name, not uninitialised memory.
TEST_F(FieldFaults, AnAbsentScaleIsNamed) {
  make({.config_json = tiny_config_json(), .format = SynthFormat::Nvfp4});
  remove([](const std::string& name) { return name == kUp + ".weight_scale_2" || name == kGate + ".weight_scale"; });
  expect_refused({"2 missing", kUp + ".weight_scale_2", kGate + ".weight_scale"});
}

TEST_F(FieldFaults, AnAbsentFp8ScaleIsNamed) {
  make({.config_json = tiny_config_json(), .format = SynthFormat::Fp8});
  remove([](const std::string& name) { return name == kUp + ".weight_scale_inv"; });
  expect_refused({"1 missing", kUp + ".weight_scale_inv"});
}

// sglang 29562: BF16 shared experts beside FP4 routed ones.
TEST_F(FieldFaults, SharedExpertsMayBeInAnotherFormat) {
  make({.config_json = tiny_config_json(), .format = SynthFormat::Nvfp4, .experts_only = true});
  const LoadedModel model = load();
  EXPECT_EQ(model.map.layers[2].shared_experts->up_proj.format, kBf16);
  EXPECT_EQ(model.map.layers[2].experts[0].up_proj.format, kNvfp4);
  EXPECT_TRUE(model.map.notes.empty()) << joined(model.map.notes);
}

// mlx-lm 1418: shared layers have no indexer, and that is well.
TEST_F(FieldFaults, SharedLayersNeedNoIndexer) {
  make({.config_json = tiny_config_json({.shared_indexers = true})});
  const LoadedModel model = load();
  EXPECT_TRUE(model.map.layers[2].indexer.has_value());
  EXPECT_FALSE(model.map.layers[3].indexer.has_value());
}

// The reverse: the configuration wants an indexer that the file lacks.
TEST_F(FieldFaults, AFullLayerWithoutIndexerTensorsIsRefused) {
  make({.config_json = tiny_config_json({.shared_indexers = true})});
  edit_json("config.json", [](json& config) { config.erase("indexer_types"); });
  expect_refused({"10 missing", "model.layers.1.self_attn.indexer.wq_b.weight"});
}

// vllm-ascend 11363: all layers have indexer tensors, the pattern says two use them.
TEST_F(FieldFaults, IndexerTensorsOfSharedLayersAreSetAside) {
  make({.config_json = tiny_config_json()});
  edit_json("config.json", [](json& config) { config["index_topk_pattern"] = "FSFS"; });
  const LoadedModel model = load();
  EXPECT_FALSE(model.map.layers[1].indexer.has_value());
  EXPECT_NE(joined(model.map.notes).find("2 shared layers carry indexer tensors"), std::string::npos)
      << joined(model.map.notes);
}

// sglang 30265, 40285: the next-n layer is BF16 in an NVFP4 checkpoint, whatever the list calls it.
TEST_F(FieldFaults, ABf16MtpLayerIsReadAsBf16UnderAnyExcludeList) {
  make({.config_json = tiny_config_json({.mtp = true}), .format = SynthFormat::Nvfp4});
  for (const char* pattern : {"model.layers.4.*", "model.language_model.layers.4.*", "model.layers.4", ""}) {
    const auto set = [&](json& list) {
      json kept = json::array();
      for (const json& item : list) {
        if (item.get<std::string>().find("layers.4") == std::string::npos) kept.push_back(item);
      }
      if (*pattern != 0) kept.push_back(pattern);
      list = kept;
    };
    edit_json("config.json", [&](json& config) { set(config["quantization_config"]["ignore"]); });
    edit_json("hf_quant_config.json", [&](json& config) { set(config["quantization"]["exclude_modules"]); });
    const LoadedModel model = load();
    ASSERT_TRUE(model.map.mtp.has_value()) << pattern;
    EXPECT_EQ(model.map.mtp->layer.experts[0].up_proj.format, kBf16) << pattern;
    const bool told =
        joined(model.map.notes).find("not quantised though the configuration says so") != std::string::npos;
    EXPECT_EQ(told, *pattern == 0) << joined(model.map.notes);
  }
}

// The opposite conflict: a list that swallows quantised layers. The message names both files and the tensors.
TEST_F(FieldFaults, QuantisedTensorsThatTheListExcludesAreRefused) {
  make({.config_json = tiny_config_json(), .format = SynthFormat::Nvfp4});
  edit_json("config.json", [](json& config) { config["quantization_config"]["ignore"].push_back("model.layers.2*"); });
  edit_json("hf_quant_config.json",
            [](json& config) { config["quantization"]["exclude_modules"].push_back("model.layers.2*"); });
  expect_refused({"config.json: modelopt NVFP4", "hf_quant_config.json: NVFP4", "tensors: nvfp4",
                  "model.layers.2.mlp.experts.0.down_proj"});
}

TEST_F(FieldFaults, AFormatOtherThanTheConfigurationSaysIsRefused) {
  make({.config_json = tiny_config_json({.wide = true}), .format = SynthFormat::Fp8});
  json fp8 = json::parse(read_file(folder() / "config.json"))["quantization_config"];
  edit_json("config.json", [&](json& config) {
    config["quantization_config"] = {
        {"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", fp8["modules_to_not_convert"]}};
  });
  expect_refused({"config.json: modelopt NVFP4", "hf_quant_config.json: absent", "fp8_block(e4m3/128x128/f32)"});
  edit_json("config.json", [](json& config) { config.erase("quantization_config"); });
  expect_refused({"config.json: no quantization_config", "fp8_block"});
}

TEST_F(FieldFaults, AConfigurationThatQuantisesAndTensorsThatAreNotIsRefused) {
  make({.config_json = tiny_config_json()});
  edit_json("config.json", [](json& config) {
    config["quantization_config"] = {
        {"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"modules_to_not_convert", {"lm_head"}}};
  });
  expect_refused({"config.json: fp8", "tensors: none quantised"});
}

// festr2/GLM-5-NVFP4-MTP, Model-Optimizer 750: the key is there and the layer is not.
TEST_F(FieldFaults, AbsentMtpWeightsTurnSpeculationOffWithANote) {
  make({.config_json = tiny_config_json({.mtp = true}), .mtp = false});
  const LoadedModel model = load();
  EXPECT_FALSE(model.map.mtp.has_value());
  EXPECT_NE(joined(model.map.notes).find("model.layers.4.eh_proj.weight is absent"), std::string::npos)
      << joined(model.map.notes);
}

TEST_F(FieldFaults, WithoutTheKeyTheTensorsDecideAboutMtp) {
  make({.config_json = tiny_config_json({.mtp = true})});
  edit_json("config.json", [](json& config) { config.erase("num_nextn_predict_layers"); });
  EXPECT_TRUE(load().map.mtp.has_value());
  EXPECT_TRUE(load().map.notes.empty());
  edit_json("config.json", [](json& config) { config["num_nextn_predict_layers"] = 0; });
  EXPECT_FALSE(load().map.mtp.has_value());
  EXPECT_NE(joined(load().map.notes).find("model.layers.4.* are not used"), std::string::npos);
}

TEST_F(FieldFaults, AnIncompleteMtpLayerIsRefused) {
  make({.config_json = tiny_config_json({.mtp = true})});
  remove([](const std::string& name) { return name == "model.layers.4.enorm.weight"; });
  expect_refused({"1 missing: model.layers.4.enorm.weight"});
}

// vllm-ascend 6754: the layer has no embedding and head of its own, or copies of the main ones.
TEST_F(FieldFaults, MtpUsesTheMainEmbeddingAndHead) {
  make({.config_json = tiny_config_json({.mtp = true})});
  EXPECT_TRUE(load().map.mtp.has_value());
  edit([](Tensors& tensors) {
    const size_t count = tensors.size();
    for (size_t i = 0; i < count; ++i) {
      Editable copy = tensors[i];
      if (copy.info.name == "model.embed_tokens.weight") copy.info.name = "model.layers.4.embed_tokens.weight";
      if (copy.info.name == "lm_head.weight") {
        copy.info.name = "model.layers.4.shared_head.head.weight";
        copy.bytes[0] ^= 1;
      }
      if (copy.info.name != tensors[i].info.name) tensors.push_back(copy);
    }
  });
  const LoadedModel model = load();
  const std::string notes = joined(model.map.notes);
  EXPECT_NE(notes.find("model.layers.4.embed_tokens.weight is set aside, model.embed_tokens.weight is used\n"),
            std::string::npos)
      << notes;
  EXPECT_NE(notes.find("lm_head.weight is used though the two differ"), std::string::npos) << notes;
}

// transformers 38870: a missing head is an error unless the configuration ties it.
TEST_F(FieldFaults, TiedEmbeddings) {
  make({.config_json = tiny_config_json()});
  edit_json("config.json", [](json& config) { config["tie_word_embeddings"] = true; });
  expect_refused({"tie_word_embeddings is true", "lm_head.weight"});  // a head of its own: not what the key says
  edit([](Tensors& tensors) {
    const auto named = [&](const char* name) {
      return std::find_if(tensors.begin(), tensors.end(), [&](const Editable& t) { return t.info.name == name; });
    };
    named("lm_head.weight")->bytes = named("model.embed_tokens.weight")->bytes;
  });
  EXPECT_NE(joined(load().map.notes).find("lm_head.weight is set aside"), std::string::npos);
  remove([](const std::string& name) { return name == "lm_head.weight"; });
  const LoadedModel tied = load();
  EXPECT_EQ(tied.map.lm_head.data, tied.map.embed_tokens.data);
  edit_json("config.json", [](json& config) { config["tie_word_embeddings"] = false; });
  expect_refused({"1 missing: lm_head.weight"});
}

TEST_F(FieldFaults, MissingSurplusAndIllShapedTensorsAreToldTogether) {
  make({.config_json = tiny_config_json()});
  edit([](Tensors& tensors) {
    std::erase_if(tensors, [](const Editable& tensor) { return tensor.info.name == "model.norm.weight"; });
    for (Editable& tensor : tensors) {
      if (tensor.info.name == "model.layers.1.self_attn.q_b_proj.weight")
        std::swap(tensor.info.shape[0], tensor.info.shape[1]);
    }
    tensors.push_back({{.name = "model.layers.1.self_attn.q_proj.weight", .dtype = DType::U8, .shape = {2}}, "ab"});
  });
  expect_refused({"1 missing: model.norm.weight",
                  "1 wrong: model.layers.1.self_attn.q_b_proj.weight is BF16 [48, 128], config.json makes it [128, 48]",
                  "1 that this model has no place for: model.layers.1.self_attn.q_proj.weight"});
}

TEST_F(FieldFaults, ASeparateMtpFileIsFound) {
  make({.config_json = tiny_config_json({.mtp = true})});
  Tensors moved;
  edit([&](Tensors& tensors) {
    for (const Editable& tensor : tensors) {
      if (tensor.info.name.starts_with("model.layers.4.")) moved.push_back(tensor);
    }
    std::erase_if(tensors, [](const Editable& tensor) { return tensor.info.name.starts_with("model.layers.4."); });
  });
  std::vector<TensorInfo> layout;
  for (const Editable& tensor : moved) layout.push_back(tensor.info);
  auto writer = SafetensorsWriter::create(folder() / "mtp.safetensors", layout);
  ASSERT_TRUE(writer);
  for (const Editable& tensor : moved) ASSERT_TRUE(writer->write(tensor.bytes.data(), tensor.bytes.size()));
  ASSERT_TRUE(writer->finish());
  const LoadedModel model = load();
  EXPECT_TRUE(model.map.mtp.has_value());
  EXPECT_FALSE(model.checkpoint.warnings().empty());
}

TEST_F(FieldFaults, RouterWeightsProjAndBiasKeepTheirTypes) {
  make({.config_json = tiny_config_json()});
  edit_one("model.layers.1.mlp.gate.e_score_correction_bias", [](Editable& tensor) {
    tensor.info.dtype = DType::BF16;
    tensor.bytes.resize(tensor.bytes.size() / 2);
  });
  expect_refused({"model.layers.1.mlp.gate.e_score_correction_bias is BF16", "must be F32"});
}

// Values: the container is valid, the model is not.
TEST_F(FieldFaults, ValuesThatNoWeightHasAreNamed) {
  make({.config_json = tiny_config_json({.wide = true}), .format = SynthFormat::Fp8});
  const std::string scale = kUp + ".weight_scale_inv";
  float good = 0;
  for (const float bad : {0.0f, -1.0f, std::nanf(""), INFINITY}) {
    edit_one(scale, [&](Editable& tensor) {
      if (good == 0) good = as_float(tensor);
      set_float(tensor, bad);
    });
    expect_bad_value({scale, "finite and above 0"});
  }
  edit_one(scale, [&](Editable& tensor) { set_float(tensor, good * 1e6f); });
  expect_bad_value({kUp, "root mean square"});
  edit_one(scale, [&](Editable& tensor) { set_float(tensor, good); });
  edit_one(kUp + ".weight", [](Editable& tensor) { tensor.bytes[300] = '\x7f'; });
  expect_bad_value({kUp, "element [1, 44] is not finite"});
}

TEST_F(FieldFaults, Nvfp4ScaleBytesWithSignOrNanAreNamed) {
  make({.config_json = tiny_config_json(), .format = SynthFormat::Nvfp4});
  for (const char bad : {'\x7f', '\xff', '\xb8'}) {
    edit_one(kUp + ".weight_scale", [&](Editable& tensor) { tensor.bytes[5] = bad; });
    expect_bad_value({kUp + ".weight_scale", "scale 5 of"});
  }
}

TEST_F(FieldFaults, GlobalScalesMustBeFiniteAndPositive) {
  make({.config_json = tiny_config_json(), .format = SynthFormat::Nvfp4});
  for (const float bad : {0.0f, -1e-3f, std::nanf(""), INFINITY}) {
    edit_one(kUp + ".weight_scale_2", [&](Editable& tensor) { set_float(tensor, bad); });
    expect_refused({kUp + ".weight_scale_2", "finite and above 0"});
  }
}

// Reciprocal where a factor belongs: the name decides how it is read, the magnitude shows the swap.
TEST_F(FieldFaults, ASwappedScaleConventionIsFound) {
  make({.config_json = tiny_config_json(), .format = SynthFormat::Nvfp4});
  edit_one(kUp + ".weight_scale_2", [](Editable& tensor) { set_float(tensor, 1.0f / as_float(tensor)); });
  expect_bad_value({kUp + ".weight_scale_2", "the other producer's convention"});
}

TEST_F(FieldFaults, BothConventionsDecodeToTheSameWeights) {
  make({.config_json = tiny_config_json(), .format = SynthFormat::Nvfp4Compressed});
  const LoadedModel model = load();
  const WeightSource& up = model.map.layers[2].experts[3].up_proj;
  EXPECT_EQ(up.name, kUp + ".weight_packed");
  EXPECT_LT(up.global_scale, 0.01f);
  EXPECT_NEAR(up.input_scale * 2688, 8.0, 1e-4);
  EXPECT_TRUE(check_all_values(model.map));
}

TEST_F(FieldFaults, NonFiniteValuesInPlainTensorsAreNamed) {
  make({.config_json = tiny_config_json()});
  edit_one("model.layers.1.self_attn.kv_a_layernorm.weight", [](Editable& tensor) {
    tensor.bytes[6] = '\x80';  // element 3 becomes 0x7f80, infinity
    tensor.bytes[7] = '\x7f';
  });
  expect_bad_value({"model.layers.1.self_attn.kv_a_layernorm.weight", "element [3, 0] is not finite"});
}

TEST_F(FieldFaults, UncalibratedExpertsAreTold) {
  make({.config_json = tiny_config_json(), .format = SynthFormat::Nvfp4});
  edit_one(kUp + ".input_scale", [](Editable& tensor) { set_float(tensor, 0.5f / 2688.0f); });
  EXPECT_NE(joined(load().map.notes).find("1 linears have the input_scale 1.8601e-4"), std::string::npos)
      << joined(load().map.notes);
}

TEST_F(FieldFaults, StackedExpertsOfTheWrongShapeOrTwiceAreRefused) {
  make({.config_json = tiny_config_json(), .stacked_experts = true});
  edit_one("model.layers.1.mlp.experts.gate_up_proj", [](Editable& tensor) { tensor.info.shape = {8, 32, 128}; });
  expect_refused({"model.layers.1.mlp.experts.gate_up_proj is BF16 [8, 32, 128]"});
}

}  // namespace
}  // namespace plumb
