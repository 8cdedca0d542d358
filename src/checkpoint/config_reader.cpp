#include "checkpoint/config_reader.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace plumb {
namespace {

using nlohmann::json;

// nullopt: not an integer of 32 bits at or above `low`.
std::optional<int> as_int(const json& value, int64_t low) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int32_t>::max()) return std::nullopt;
  const int64_t number = value.get<int64_t>();
  if (number < low || number > std::numeric_limits<int32_t>::max()) return std::nullopt;
  return static_cast<int>(number);
}

}  // namespace

std::string ConfigReader::shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 120) text = text.substr(0, 120) + "...";
  return text;
}

const json* ConfigReader::get(const char* key) {
  known_.insert(key);
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigReader::has_null(const char* key) const {
  const auto it = object_.find(key);
  return it != object_.end() && it->is_null();
}

void ConfigReader::ill_formed(std::string_view key, std::string_view expected) {
  const auto it = object_.find(std::string(key));
  broken_.push_back(fmt::format("'{}' is {}, expected {}", key, it == object_.end() ? "absent" : shown(*it), expected));
}

void ConfigReader::broken(std::string what) { broken_.push_back(std::move(what)); }
void ConfigReader::unsupported(std::string what) { unsupported_.push_back(std::move(what)); }

std::optional<int> ConfigReader::optional_integer(const char* key, int64_t low) {
  const json* value = get(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int> number = as_int(*value, low);
  if (!number) ill_formed(key, fmt::format("an integer from {} to 2147483647", low));
  return number;
}

std::optional<double> ConfigReader::optional_number(const char* key) {
  const json* value = get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    ill_formed(key, "a finite number");
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<bool> ConfigReader::optional_boolean(const char* key) {
  const json* value = get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    ill_formed(key, "true or false");
    return std::nullopt;
  }
  return value->get<bool>();
}

int ConfigReader::integer(const char* key, int64_t low, std::optional<int> fallback) {
  if (get(key) != nullptr) return optional_integer(key, low).value_or(static_cast<int>(low));
  if (!fallback) broken(fmt::format("'{}' is missing", key));
  if (fallback && !quiet_)
    note(fmt::format("{}: '{}' is absent, {} taken (the published default)", file_, key, *fallback));
  return fallback.value_or(static_cast<int>(low));
}

double ConfigReader::number(const char* key, std::optional<double> fallback) {
  if (get(key) != nullptr) return optional_number(key).value_or(1.0);
  if (!fallback) broken(fmt::format("'{}' is missing", key));
  if (fallback && !quiet_)
    note(fmt::format("{}: '{}' is absent, {} taken (the published default)", file_, key, *fallback));
  return fallback.value_or(1.0);
}

bool ConfigReader::boolean(const char* key, std::optional<bool> fallback) {
  if (get(key) != nullptr) return optional_boolean(key).value_or(false);
  if (!fallback) broken(fmt::format("'{}' is missing", key));
  if (fallback && !quiet_)
    note(fmt::format("{}: '{}' is absent, {} taken (the published default)", file_, key, *fallback));
  return fallback.value_or(false);
}

std::string ConfigReader::string(const char* key, const std::optional<std::string>& fallback) {
  const json* value = get(key);
  if (value == nullptr) {
    if (!fallback) broken(fmt::format("'{}' is missing", key));
    return fallback.value_or("");
  }
  if (!value->is_string()) {
    ill_formed(key, "a string");
    return "";
  }
  return value->get<std::string>();
}

std::vector<int> ConfigReader::token_ids(const char* key) {
  const json* value = get(key);
  if (value == nullptr) return {};
  std::vector<int> ids;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& item : list) {
    const std::optional<int> id = as_int(item, 0);
    if (!id) {
      ill_formed(key, "a token id or a list of them");
      return {};
    }
    ids.push_back(*id);
  }
  return ids;
}

Error ConfigReader::error() const {
  std::vector<std::string> all = broken_;
  all.insert(all.end(), unsupported_.begin(), unsupported_.end());
  Error error{
      broken_.empty() ? Code::Unsupported : Code::Corrupt, file_ + ": " + (all.empty() ? "" : all.front()), "", {}};
  for (size_t i = 1; i < all.size(); ++i) error.what += fmt::format("\n  and: {}", all[i]);
  return error;
}

}  // namespace plumb
