// What a checkpoint says about its quantisation: `quantization_config` of config.json and hf_quant_config.json
// (formats.md sections 2.4, 2.9, 3.1, 3.3). Only what it says: the tensors decide (model/weight_map.h), and the two are
// compared there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "checkpoint/module_patterns.h"
#include "tensor/format.h"

namespace plumb {

enum class QuantMethod { None, Fp8, ModelOpt, CompressedTensors };
enum class ActivationScheme { None, Dynamic, Static };  // None: weight-only

// Modules that one rule quantises.
struct QuantGroup {
  bool all_linears = false;  // target "Linear"
  ModulePatterns targets{};  // else these
  Format format{};           // with F32 block scales; QuantConfig::scale_ue8m0 tells the other kind
  ActivationScheme activations = ActivationScheme::None;
};

struct QuantConfig {
  QuantMethod method = QuantMethod::None;
  std::string algorithm{};  // as the files name it: "fp8", "NVFP4", "nvfp4-pack-quantized"; empty for None
  std::string config_says = "config.json: no quantization_config";  // a line each, for messages that name all three
  std::string hf_quant_says = "hf_quant_config.json: absent";
  std::vector<QuantGroup> groups{};
  ModulePatterns excluded{};
  bool scale_ue8m0 = false;               // scale_fmt "ue8m0"
  std::optional<std::string> kv_cache{};  // "FP8": a request, no scales are shipped
  std::vector<std::string> notes{};

  // The rule for a linear module (name without ".weight"); nullptr: this configuration leaves it unquantised.
  const QuantGroup* group_of(std::string_view module) const;
  std::optional<Format> expected_format(std::string_view module) const;
};

// `config`: the parsed config.json; `hf_quant`: the parsed hf_quant_config.json or nullptr. Both present must agree.
Result<QuantConfig> parse_quant_config(const nlohmann::json& config, const nlohmann::json* hf_quant);
// Reads both files of a model folder.
Result<QuantConfig> read_quant_config(const std::filesystem::path& folder);

}  // namespace plumb
