#include "serve/fields.h"

namespace plumb {

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

namespace {

std::string plain(double value) { return Json(value).dump(); }

std::string plain_bound(double value) {
  const auto whole = static_cast<int64_t>(value);
  return static_cast<double>(whole) == value ? std::to_string(whole) : plain(value);
}

}  // namespace

const Json* Fields::find(std::string_view name) {
  known_.emplace(name);
  const auto it = object_.find(std::string(name));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool Fields::boolean(std::string_view name, bool fallback) {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  fail(name, "is " + shown(*value) + ", expected true or false", "invalid_type");
  return fallback;
}

int64_t Fields::integer(std::string_view name, int64_t fallback, int64_t lowest, int64_t highest) {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number_integer()) {
    fail(name, "is " + shown(*value) + ", expected an integer", "invalid_type");
    return fallback;
  }
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = huge ? INT64_MAX : value->get<int64_t>();
  if (huge || number < lowest || number > highest) {
    fail(name, "is " + shown(*value) + ", expected " + std::to_string(lowest) + " to " + std::to_string(highest));
    return fallback;
  }
  return number;
}

double Fields::number(std::string_view name, double fallback, Bounds bounds) {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    fail(name, "is " + shown(*value) + ", expected a number", "invalid_type");
    return fallback;
  }
  const auto number = value->get<double>();
  const bool above = bounds.lowest_excluded ? number > bounds.lowest : number >= bounds.lowest;
  if (!(above && number <= bounds.highest)) {
    fail(name, "is " + shown(*value) + ", expected " + (bounds.lowest_excluded ? "more than " : "") +
                   plain_bound(bounds.lowest) + " to " + plain_bound(bounds.highest));
    return fallback;
  }
  return number;
}

std::string Fields::text(std::string_view name, std::string fallback) {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  fail(name, "is " + shown(*value) + ", expected a string", "invalid_type");
  return fallback;
}

void Fields::not_offered(std::string_view name, const Json& neutral_value, std::string_view reason) {
  const Json* value = find(name);
  if (value == nullptr || *value == neutral_value) return;
  fail(name, "is " + shown(*value) + ": " + std::string(reason), "unsupported_parameter");
}

void Fields::fail(std::string_view name, std::string message, std::string code) {
  if (error_) return;
  std::string param = path_of(name);
  error_ = bad_request(param, "'" + param + "' " + std::move(message), std::move(code));
}

std::string Fields::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items())
    if (!known_.contains(name)) names.push_back(name);
  return names;
}

}  // namespace plumb
