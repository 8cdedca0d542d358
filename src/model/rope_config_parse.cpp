#include "model/rope_config_parse.h"

#include <array>
#include <cmath>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace plumb {
namespace {

using nlohmann::json;

const json* field(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// A number that must be finite and at least `low`.
std::optional<double> number_at_least(ConfigReader& config, const json& object, const char* where, const char* key,
                                      double low) {
  const json* value = field(object, key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= low) || !std::isfinite(number)) {
    config.broken(
        fmt::format("'{}.{}' is {}, expected a number of at least {}", where, key, ConfigReader::shown(*value), low));
    return std::nullopt;
  }
  return number;
}

// One object of either form.
struct Form {
  bool present = false;
  RopeSpec spec{};
  std::optional<double> theta{};
};

void check_keys(ConfigReader& config, const json& object, const char* where) {
  static constexpr std::array kKnown{
      "rope_theta", "rope_type", "type",   "factor",        "original_max_position_embeddings",
      "beta_fast",  "beta_slow", "mscale", "mscale_all_dim"};
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;
    bool known = false;
    for (const char* name : kKnown) known = known || key == name;
    if (known || (key == "partial_rotary_factor" && value.is_number() && value.get<double>() == 1.0)) continue;
    if (value.is_object()) {
      config.unsupported(
          fmt::format("'{}.{}' is an object: rope parameters by layer type are not supported", where, key));
    } else {
      config.unsupported(fmt::format("'{}.{}' is {}: it changes the rotation and is not supported", where, key,
                                     ConfigReader::shown(value)));
    }
  }
}

std::string type_of(ConfigReader& config, const json& object, const char* where) {
  std::string found;
  for (const char* key : {"rope_type", "type"}) {
    const json* value = field(object, key);
    if (value == nullptr) continue;
    if (!value->is_string()) {
      config.broken(fmt::format("'{}.{}' is {}, expected a string", where, key, ConfigReader::shown(*value)));
      continue;
    }
    const std::string name = value->get<std::string>();
    if (!found.empty() && found != name) {
      config.broken(fmt::format("'{}' has rope_type '{}' and type '{}'", where, found, name));
    }
    found = name;
  }
  return found;
}

void parse_yarn(ConfigReader& config, const json& object, const char* where, RopeSpec& spec) {
  spec.type = RopeType::Yarn;
  const auto required = [&](const char* key, double low) {
    const std::optional<double> value = number_at_least(config, object, where, key, low);
    if (!value && field(object, key) == nullptr)
      config.broken(fmt::format("'{}.{}' is missing: YaRN needs it", where, key));
    return value.value_or(1.0);
  };
  spec.factor = required("factor", 1.0);
  spec.original_max_position_embeddings = required("original_max_position_embeddings", 1.0);
  spec.beta_fast = number_at_least(config, object, where, "beta_fast", 1e-6).value_or(32.0);
  spec.beta_slow = number_at_least(config, object, where, "beta_slow", 1e-6).value_or(1.0);
  // Without them libraries disagree on the factor of the softmax scale.
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    const json* value = field(object, key);
    if (value == nullptr || (value->is_number() && value->get<double>() == 0.0)) {
      config.unsupported(fmt::format("'{}.{}' is absent or 0: YaRN without it is not supported", where, key));
    }
  }
  spec.mscale = number_at_least(config, object, where, "mscale", 0.0).value_or(1.0);
  spec.mscale_all_dim = number_at_least(config, object, where, "mscale_all_dim", 0.0).value_or(1.0);
}

Form parse_form(ConfigReader& config, const json* object, const char* where) {
  Form form;
  if (object == nullptr) return form;
  if (!object->is_object()) {
    config.broken(fmt::format("'{}' is {}, expected an object", where, ConfigReader::shown(*object)));
    return form;
  }
  form.present = true;
  check_keys(config, *object, where);
  form.theta = number_at_least(config, *object, where, "rope_theta", 1.0);
  const std::string type = type_of(config, *object, where);
  if (type == "yarn") {
    parse_yarn(config, *object, where, form.spec);
  } else if (!type.empty() && type != "default") {
    config.unsupported(fmt::format("'{}' has rope_type '{}'; supported are 'default' and 'yarn'", where, type));
  } else if (const json* factor = field(*object, "factor"); factor != nullptr && *factor != 1) {
    config.broken(
        fmt::format("'{}' has factor {}, but its rope_type is 'default'", where, ConfigReader::shown(*factor)));
  }
  return form;
}

}  // namespace

RopeSpec parse_rope(ConfigReader& config) {
  const Form v5 = parse_form(config, config.get("rope_parameters"), "rope_parameters");
  const Form v4 = parse_form(config, config.get("rope_scaling"), "rope_scaling");
  std::optional<double> theta = config.optional_number("rope_theta");
  if (theta && !(*theta >= 1.0)) config.ill_formed("rope_theta", "a number of at least 1");
  if (config.get("rope_theta") != nullptr && !theta) return {};
  for (const Form* form : {&v5, &v4}) {
    if (!form->theta) continue;
    if (theta && *theta != *form->theta) {
      config.broken(fmt::format("rope_theta is {} in one place and {} in another", *theta, *form->theta));
    }
    theta = form->theta;
  }
  if (v5.present && v4.present && v5.spec != v4.spec) {
    config.broken("'rope_parameters' and 'rope_scaling' describe different rotations");
  }
  RopeSpec spec = v5.present ? v5.spec : v4.spec;
  if (!theta)
    config.broken("'rope_theta' is missing, at the top level and in 'rope_parameters': there is no safe default");
  spec.theta = theta.value_or(1.0);
  if (spec.type == RopeType::Yarn && !(spec.theta > 1.0)) config.broken("YaRN needs a rope_theta above 1");
  return spec;
}

}  // namespace plumb
