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
#include "tensor/format.h"

namespace plumb {

enum class QuantMethod { None, Fp8, ModelOpt, CompressedTensors };
enum class ActivationScheme { None, Dynamic, Static };  // None: weight-only

// Modules that one rule quantises.
struct QuantGroup {
  std::vector<std::string> targets{};  // "Linear" (every linear), a module name, a glob, or "re:..."
  Format format{};
  ActivationScheme activations = ActivationScheme::None;
};

struct QuantConfig {
  QuantMethod method = QuantMethod::None;
  std::string algorithm{};    // as the files name it: "fp8", "NVFP4", "nvfp4-pack-quantized"; empty for None
  std::string config_says{};  // one line each for three-way messages
  std::string hf_quant_says{};
  std::vector<QuantGroup> groups{};
  std::vector<std::string> excluded{};    // patterns; see module_matches
  bool scale_ue8m0 = false;               // scale_fmt "ue8m0"
  std::optional<std::string> kv_cache{};  // "FP8": a request, no scales are shipped
  std::vector<std::string> notes{};

  bool is_excluded(std::string_view module) const;
  // The format this configuration gives to a linear module (name without ".weight"); nullopt: not quantised.
  std::optional<Format> expected_format(std::string_view module) const;
  const QuantGroup* group_of(std::string_view module) const;
};

// A pattern against a module name without ".weight": equal; a parent (`model.layers.4` covers what is below it, and
// never layer 40); a glob whose `*` crosses dots; `re:` regex from the start of the name (compressed-tensors). Tried
// for the name, for its `model.language_model.` spelling, and for fused names (q_a + kv_a, gate + up) in both
// directions.
bool module_matches(std::string_view pattern, std::string_view module);

// `config`: the parsed config.json; `hf_quant`: the parsed hf_quant_config.json or nullptr. Both present must agree.
Result<QuantConfig> parse_quant_config(const nlohmann::json& config, const nlohmann::json* hf_quant);
// Reads both files of a model folder.
Result<QuantConfig> read_quant_config(const std::filesystem::path& folder);

}  // namespace plumb
