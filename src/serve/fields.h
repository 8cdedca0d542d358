// Reads the fields of one JSON object, keeps the first error, and knows afterwards which keys nobody asked for.
// Included by .cpp files only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

#include "serve/api_error.h"

namespace plumb {

using Json = nlohmann::ordered_json;

struct Bounds {
  double lowest = 0, highest = 0;
  bool lowest_excluded = false;
};

class Fields {
 public:
  // `path` is "" for the request itself, else for instance "messages[3]".
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  // Absent and null are the same to clients: nullptr.
  const Json* find(std::string_view name);
  bool boolean(std::string_view name, bool fallback);
  int64_t integer(std::string_view name, int64_t fallback, int64_t lowest, int64_t highest);
  double number(std::string_view name, double fallback, Bounds bounds);
  std::string text(std::string_view name, std::string fallback = {});

  // Accepted and without effect here.
  void neutral(std::string_view name) { known_.emplace(name); }
  // Known, and not offered with any value but null and `neutral_value`.
  void not_offered(std::string_view name, const Json& neutral_value, std::string_view reason);

  void fail(std::string_view name, std::string message, std::string code = "invalid_value");
  void fail(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  bool ok() const { return !error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }
  std::string path_of(std::string_view name) const;
  std::vector<std::string> unknown() const;

 private:
  const Json& object_;
  std::string path_;
  std::unordered_set<std::string> known_{};
  std::optional<ApiError> error_{};
};

// A value as an error message shows it: short, one line.
std::string shown(const Json& value);

}  // namespace plumb
