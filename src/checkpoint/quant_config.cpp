#include "checkpoint/quant_config.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/config_reader.h"
#include "checkpoint/json_file.h"

namespace plumb {
namespace {

using nlohmann::json;

// What we can run under each of ModelOpt's algorithm names; the others are refused by name.
struct Algorithm {
  const char* name;
  Format format;
  ActivationScheme activations;
};
constexpr std::array kAlgorithms{Algorithm{"NVFP4", kNvfp4, ActivationScheme::Static},
                                 Algorithm{"W4A16_NVFP4", kNvfp4, ActivationScheme::None},
                                 Algorithm{"FP8", kFp8Tensor, ActivationScheme::Static},
                                 Algorithm{"FP8_PER_CHANNEL_PER_TOKEN", kFp8Channel, ActivationScheme::Dynamic}};
constexpr const char* kAlgorithmNames = "NVFP4, W4A16_NVFP4, FP8, FP8_PER_CHANNEL_PER_TOKEN, MIXED_PRECISION of these";

const Algorithm* find_algorithm(ConfigReader& r, std::string_view name) {
  for (const Algorithm& algorithm : kAlgorithms) {
    if (name == algorithm.name) return &algorithm;
  }
  r.unsupported(fmt::format("quantisation algorithm '{}' is not supported; supported are {}", name, kAlgorithmNames));
  return nullptr;
}

std::vector<std::string> strings(ConfigReader& r, const char* key) {
  std::vector<std::string> list;
  const json* value = r.get(key);
  if (value == nullptr) return list;
  if (!value->is_array()) {
    r.ill_formed(key, "a list of strings");
    return list;
  }
  for (const json& item : *value) {
    if (!item.is_string()) {
      r.ill_formed(key, "a list of strings");
      return {};
    }
    list.push_back(item.get<std::string>());
  }
  return list;
}

ModulePatterns patterns(ConfigReader& r, std::vector<std::string> list) {
  auto compiled = ModulePatterns::compile(std::move(list));
  if (compiled) return *std::move(compiled);
  r.broken(compiled.error().what);
  return {};
}

void note_other_keys(ConfigReader& r, const json& object, std::string_view file) {
  for (const auto& [key, value] : object.items()) {
    if (r.known().contains(key) || value.is_null()) continue;
    r.note(fmt::format("{}: '{}' {} has no known meaning", file, key, ConfigReader::shown(value)));
  }
}

// kv_cache_scheme {"num_bits": 8, "type": "float"}: a wish for an FP8 cache.
std::optional<std::string> kv_from_scheme(ConfigReader& r) {
  const json* scheme = r.get("kv_cache_scheme");
  if (scheme == nullptr) return std::nullopt;
  if (scheme->is_object() && scheme->value("num_bits", json()) == 8 && scheme->value("type", json()) == "float")
    return "FP8";
  r.unsupported(
      fmt::format("kv_cache_scheme {} is not supported; supported is 8-bit float", ConfigReader::shown(*scheme)));
  return std::nullopt;
}

// quant_method "fp8": DeepSeek and GLM block form (formats.md 3.1).
void parse_fp8(ConfigReader& r, QuantConfig& q) {
  q.method = QuantMethod::Fp8;
  q.algorithm = "fp8";
  QuantGroup group{
      .all_linears = true, .targets = {}, .format = kFp8BlockF32, .activations = ActivationScheme::Dynamic};
  if (const std::string fmt = r.string("fmt", "e4m3"); fmt != "e4m3")
    r.unsupported("fmt '" + fmt + "'; supported is e4m3");
  const std::string scheme = r.string("activation_scheme", "dynamic");
  if (scheme != "dynamic") r.unsupported("activation_scheme '" + scheme + "'; supported is dynamic");
  const json* block = r.get("weight_block_size");
  if (block == nullptr || *block != json::array({128, 128})) {
    r.unsupported(
        fmt::format("weight_block_size {}; supported is [128, 128]", block ? ConfigReader::shown(*block) : "absent"));
  }
  const std::string scale_fmt = r.string("scale_fmt", "");
  if (!scale_fmt.empty() && scale_fmt != "ue8m0")
    r.unsupported("scale_fmt '" + scale_fmt + "'; supported is ue8m0, or none");
  q.scale_ue8m0 = scale_fmt == "ue8m0";
  std::vector<std::string> excluded = strings(r, "modules_to_not_convert");
  for (std::string& name : strings(r, "ignored_layers")) excluded.push_back(std::move(name));
  q.excluded = patterns(r, std::move(excluded));
  q.groups.push_back(std::move(group));
}

void add_mixed_layers(ConfigReader& r, QuantConfig& q) {
  const json* layers = r.get("quantized_layers");
  if (layers == nullptr || !layers->is_object()) return r.ill_formed("quantized_layers", "an object of layers");
  std::map<std::string, std::vector<std::string>> by_algorithm;
  for (const auto& [name, layer] : layers->items()) {
    const json algorithm = layer.is_object() ? layer.value("quant_algo", json()) : json();
    if (!algorithm.is_string()) return r.broken(fmt::format("quantized_layers '{}' has no quant_algo", name));
    if (algorithm.get<std::string>().find("NVFP4") != std::string::npos && layer.value("group_size", json(16)) != 16) {
      r.unsupported(fmt::format("quantized_layers '{}' has group_size {}; supported is 16", name,
                                ConfigReader::shown(layer["group_size"])));
    }
    by_algorithm[algorithm.get<std::string>()].push_back(name);
  }
  for (auto& [name, modules] : by_algorithm) {
    const Algorithm* algorithm = find_algorithm(r, name);
    if (algorithm == nullptr) continue;
    q.groups.push_back({false, patterns(r, std::move(modules)), algorithm->format, algorithm->activations});
  }
}

// Shared by both of ModelOpt's files: algorithm, block size, exclude list.
void parse_modelopt(ConfigReader& r, QuantConfig& q, const std::string& algorithm_name, const char* exclude_key) {
  q.method = QuantMethod::ModelOpt;
  q.algorithm = algorithm_name;
  q.excluded = patterns(r, strings(r, exclude_key));
  if (algorithm_name == "MIXED_PRECISION") return add_mixed_layers(r, q);
  const Algorithm* algorithm = find_algorithm(r, algorithm_name);
  if (algorithm == nullptr) return;
  const std::optional<int> group_size = r.optional_integer("group_size", 0);
  if (algorithm->format == kNvfp4 && group_size.value_or(16) != 16) {
    r.unsupported(fmt::format("group_size {}; supported for NVFP4 is 16", *group_size));
  }
  q.groups.push_back({true, {}, algorithm->format, algorithm->activations});
}

// One group of ModelOpt's `config_groups`: the algorithm its bit width stands for when the file names none.
std::string modelopt_group(ConfigReader& r, const std::string& name, const json& group, const std::string& algorithm) {
  const json weights = group.is_object() ? group.value("weights", json()) : json();
  const json num_bits = weights.is_object() ? weights.value("num_bits", json()) : json();
  std::string meant = !algorithm.empty() ? algorithm : num_bits == 4 ? "NVFP4" : num_bits == 8 ? "FP8" : "";
  if (meant == "NVFP4" && (num_bits != 4 || weights.value("group_size", json(16)) != 16)) {
    r.broken(
        fmt::format("config_groups.{}.weights is {}, but quant_algo is NVFP4", name, ConfigReader::shown(weights)));
  }
  return meant;
}

// ModelOpt's quantization_config: `quant_algo`, or in older files only groups with bit widths.
void parse_modelopt_config(ConfigReader& r, QuantConfig& q) {
  std::string algorithm = r.string("quant_algo", "");
  if (const json* groups = r.get("config_groups"); groups != nullptr && groups->is_object()) {
    for (const auto& [name, group] : groups->items()) algorithm = modelopt_group(r, name, group, algorithm);
  }
  if (algorithm.empty()) return r.broken("has no 'quant_algo'");
  parse_modelopt(r, q, algorithm, "ignore");
  q.kv_cache = kv_from_scheme(r);
}

// One config group of compressed-tensors (formats.md 2.9 and 3.3).
std::optional<Format> ct_format(ConfigReader& r, const std::string& where, const std::string& format,
                                const json& weights) {
  const auto is = [&](const char* key, const json& value) { return weights.value(key, json()) == value; };
  if (!weights.is_object() || !is("type", "float")) {
    r.unsupported(fmt::format("{}.weights {} is not supported; supported are float weights", where,
                              ConfigReader::shown(weights)));
    return std::nullopt;
  }
  if (format == "nvfp4-pack-quantized") {
    if (is("num_bits", 4) && is("strategy", "tensor_group") && is("group_size", 16)) return kNvfp4;
  } else if (format == "float-quantized" && is("num_bits", 8)) {
    if (is("strategy", "tensor")) return kFp8Tensor;
    if (is("strategy", "channel")) return kFp8Channel;
    if (is("strategy", "block") && is("block_structure", json::array({128, 128}))) return kFp8BlockF32;
  }
  r.unsupported(
      fmt::format("{}: format '{}' with weights {} is not supported; supported are nvfp4-pack-quantized "
                  "(tensor_group of 16) and float-quantized (tensor, channel, 128x128 block)",
                  where, format, ConfigReader::shown(weights)));
  return std::nullopt;
}

ActivationScheme ct_activations(const json& group) {
  const json activations = group.value("input_activations", json());
  if (!activations.is_object()) return ActivationScheme::None;
  return activations.value("dynamic", json(false)) == true ? ActivationScheme::Dynamic : ActivationScheme::Static;
}

void parse_compressed_tensors(ConfigReader& r, QuantConfig& q) {
  q.method = QuantMethod::CompressedTensors;
  q.algorithm = r.string("format", std::nullopt);
  for (const char* key : {"transform_config", "sparsity_config"}) {
    const json* value = r.get(key);
    const bool none =
        value == nullptr || value->empty() || (value->is_object() && value->value("format", json()) == "dense");
    if (!none) {
      r.unsupported(fmt::format("'{}' {} is not supported", key, ConfigReader::shown(*value)));
    }
  }
  q.excluded = patterns(r, strings(r, "ignore"));
  q.kv_cache = kv_from_scheme(r);
  const json* groups = r.get("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty())
    return r.ill_formed("config_groups", "an object of groups");
  for (const auto& [name, group] : groups->items()) {
    const std::string where = "config_groups." + name;
    if (!group.is_object()) return r.broken(where + " is not an object");
    const json own = group.value("format", json());
    const std::string format = own.is_string() ? own.get<std::string>() : q.algorithm;
    const std::optional<Format> found = ct_format(r, where, format, group.value("weights", json()));
    if (!group.value("output_activations", json()).is_null())
      r.unsupported(where + ".output_activations is not supported");
    ConfigReader inner(group, where);
    const std::vector<std::string> targets = strings(inner, "targets");
    if (!inner.ok() || targets.empty()) return r.broken(where + ".targets is not a list of names");
    if (!found) continue;
    QuantGroup rule{false, {}, *found, ct_activations(group)};
    rule.all_linears = std::find(targets.begin(), targets.end(), "Linear") != targets.end();
    if (!rule.all_linears) rule.targets = patterns(r, targets);
    q.groups.push_back(std::move(rule));
  }
}

Result<QuantConfig> parse_config_json(const json& config) {
  QuantConfig q;
  const auto it = config.find("quantization_config");
  if (it == config.end() || it->is_null()) return q;
  if (!it->is_object()) return Error{Code::Corrupt, "config.json: 'quantization_config' is not an object", "", {}};
  ConfigReader r(*it, "config.json quantization_config");
  const std::string method = r.string("quant_method", std::nullopt);
  if (method == "fp8") {
    parse_fp8(r, q);
  } else if (method.starts_with("modelopt")) {
    parse_modelopt_config(r, q);
  } else if (method == "compressed-tensors") {
    parse_compressed_tensors(r, q);
  } else if (!method.empty()) {
    r.unsupported(
        fmt::format("quant_method '{}' is not supported; supported are fp8, modelopt and compressed-tensors", method));
  }
  for (const char* key : {"producer", "quantization_status", "version", "global_compression_ratio", "dequantize"}) {
    static_cast<void>(r.get(key));
  }
  if (!r.ok()) return r.error();
  note_other_keys(r, *it, "config.json quantization_config");
  q.notes = r.notes();
  q.config_says = fmt::format("config.json: {} {}", method, q.algorithm);
  return q;
}

Result<QuantConfig> parse_hf_quant(const json& file) {
  QuantConfig q;
  const auto it = file.find("quantization");
  if (!file.is_object() || it == file.end() || !it->is_object()) {
    return Error{Code::Corrupt, "hf_quant_config.json: has no 'quantization' object", "", {}};
  }
  ConfigReader r(*it, "hf_quant_config.json");
  const std::string algorithm = r.string("quant_algo", "");
  q.hf_quant_says = fmt::format("hf_quant_config.json: {}", algorithm.empty() ? "no quant_algo" : algorithm);
  if (algorithm.empty()) return r.ok() ? Result<QuantConfig>(q) : Result<QuantConfig>(r.error());
  parse_modelopt(r, q, algorithm, "exclude_modules");
  const std::string kv = r.string("kv_cache_quant_algo", "");
  if (!kv.empty() && kv != "FP8") r.unsupported(fmt::format("kv_cache_quant_algo '{}'; supported is FP8", kv));
  if (!kv.empty()) q.kv_cache = kv;
  for (const char* key : {"has_zero_point", "pre_quant_scale"}) static_cast<void>(r.get(key));
  if (!r.ok()) return r.error();
  note_other_keys(r, *it, "hf_quant_config.json");
  q.notes = r.notes();
  return q;
}

bool same_groups(const QuantConfig& a, const QuantConfig& b) {
  const auto describe = [](const QuantConfig& q) {
    std::vector<std::string> rules;
    for (const QuantGroup& group : q.groups) {
      std::vector<std::string> targets = group.targets.patterns();
      std::sort(targets.begin(), targets.end());
      rules.push_back(fmt::format("{} {} {}", group.format.to_string(), group.all_linears, fmt::join(targets, " ")));
    }
    std::sort(rules.begin(), rules.end());
    return rules;
  };
  return describe(a) == describe(b);
}

// Both of ModelOpt's files present: they must say the same.
std::string disagreement(const QuantConfig& config, const QuantConfig& hf) {
  if (config.method != hf.method || config.algorithm != hf.algorithm) {
    return fmt::format("{}, but {}", config.config_says, hf.hf_quant_says);
  }
  if (!same_groups(config, hf)) return "they quantise different layers";
  std::vector<std::string> a = config.excluded.patterns(), b = hf.excluded.patterns(), differ;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(differ));
  if (!differ.empty())
    return fmt::format("only one of them excludes '{}' ({} such entries)", differ.front(), differ.size());
  if (config.kv_cache != hf.kv_cache) {
    return fmt::format("the KV cache is {} in config.json and {} in hf_quant_config.json",
                       config.kv_cache.value_or("unset"), hf.kv_cache.value_or("unset"));
  }
  return "";
}

}  // namespace

const QuantGroup* QuantConfig::group_of(std::string_view module) const {
  if (groups.empty() || excluded.matches(module)) return nullptr;
  for (const QuantGroup& group : groups) {
    if (!group.all_linears && group.targets.matches(module)) return &group;
  }
  for (const QuantGroup& group : groups) {
    if (group.all_linears) return &group;
  }
  return nullptr;
}

std::optional<Format> QuantConfig::expected_format(std::string_view module) const {
  const QuantGroup* group = group_of(module);
  if (group == nullptr) return std::nullopt;
  return group->format == kFp8BlockF32 && scale_ue8m0 ? kFp8BlockUe8m0 : group->format;
}

Result<QuantConfig> parse_quant_config(const json& config, const json* hf_quant) {
  if (!config.is_object()) return Error{Code::Corrupt, "config.json: is not a JSON object", "", {}};
  PLUMB_TRY(QuantConfig from_config, parse_config_json(config));
  if (hf_quant == nullptr) return from_config;
  PLUMB_TRY(QuantConfig from_hf, parse_hf_quant(*hf_quant));
  if (from_config.method == QuantMethod::None) {
    from_hf.config_says = from_config.config_says;
    return from_hf;
  }
  if (const std::string differ = disagreement(from_config, from_hf); !differ.empty()) {
    return Error{Code::Corrupt,
                 "config.json and hf_quant_config.json disagree about the quantisation",
                 differ,
                 {"correct one of the two files"}};
  }
  from_config.hf_quant_says = from_hf.hf_quant_says;
  return from_config;
}

Result<QuantConfig> read_quant_config(const std::filesystem::path& folder) {
  const JsonLimits limits{.depth = 32, .bytes = 64u << 20};
  PLUMB_TRY(const json config, read_json(folder / "config.json", limits));
  std::error_code error;
  json hf_quant;
  const bool has_hf_quant = std::filesystem::exists(folder / "hf_quant_config.json", error);
  if (has_hf_quant) {
    PLUMB_TRY(hf_quant, read_json(folder / "hf_quant_config.json", limits));
  }
  auto parsed = parse_quant_config(config, has_hf_quant ? &hf_quant : nullptr);
  if (!parsed) return std::move(parsed).error().in(folder.string());
  return parsed;
}

}  // namespace plumb
