#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/config_reader.h"
#include "checkpoint/json_file.h"
#include "model/model_config.h"

namespace plumb {
namespace {

using nlohmann::json;

std::optional<float> in_range(ConfigReader& r, const char* key, double low, double high) {
  const std::optional<double> value = r.optional_number(key);
  if (!value) return std::nullopt;
  if (!(*value >= low && *value <= high)) {
    r.ill_formed(key, fmt::format("a number from {} to {}", low, high));
    return std::nullopt;
  }
  return static_cast<float>(*value);
}

}  // namespace

Result<GenerationConfig> parse_generation_config(const json& config) {
  if (!config.is_object()) return Error{Code::Corrupt, "generation_config.json: is not a JSON object", "", {}};
  ConfigReader r(config, "generation_config.json");
  GenerationConfig g;
  g.temperature = in_range(r, "temperature", 0.0, 100.0);
  g.top_p = in_range(r, "top_p", 0.0, 1.0);
  g.min_p = in_range(r, "min_p", 0.0, 1.0);
  g.repetition_penalty = in_range(r, "repetition_penalty", 1e-6, 100.0);
  g.top_k = r.optional_integer("top_k", -1);
  g.do_sample = r.optional_boolean("do_sample");
  g.eos_token_ids = r.token_ids("eos_token_id");
  g.pad_token_id = r.optional_integer("pad_token_id", 0);
  g.max_new_tokens = r.optional_integer("max_new_tokens", 1);
  for (const char* known : {"bos_token_id", "transformers_version", "_from_model_config", "max_length", "use_cache"}) {
    static_cast<void>(r.get(known));
  }
  for (const auto& [key, value] : config.items()) {
    if (!r.known().contains(key) && !value.is_null()) {
      g.notes.push_back(fmt::format("generation_config.json: '{}' {} is set aside", key, ConfigReader::shown(value)));
    }
  }
  if (!r.ok()) return r.error();
  return g;
}

Result<GenerationConfig> read_generation_config(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder / "generation_config.json", error)) return GenerationConfig{};
  PLUMB_TRY(const json config, read_json(folder / "generation_config.json", {.depth = 16, .bytes = 1u << 20}));
  auto parsed = parse_generation_config(config);
  if (!parsed) return std::move(parsed).error().in(folder.string());
  return parsed;
}

}  // namespace plumb
