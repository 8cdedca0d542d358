// Typed, strict reading of one JSON object: remembers which keys were looked at and collects every problem, so that a
// user sees all of them at once.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace plumb {

class ConfigReader {
 public:
  // `file` names the object in messages; the object must outlive the reader.
  ConfigReader(const nlohmann::json& object, std::string file) : object_(object), file_(std::move(file)) {}

  // nullptr if absent or null; the key counts as known from now on.
  const nlohmann::json* get(const char* key);
  bool has_null(const char* key) const;  // present, with the value null
  // An absent key takes `fallback` and leaves a note; without a fallback it is a problem.
  int integer(const char* key, int64_t low, std::optional<int> fallback);
  double number(const char* key, std::optional<double> fallback);  // finite
  bool boolean(const char* key, std::optional<bool> fallback);
  std::string string(const char* key, const std::optional<std::string>& fallback);
  std::optional<int> optional_integer(const char* key, int64_t low);
  std::optional<double> optional_number(const char* key);
  std::optional<bool> optional_boolean(const char* key);
  // One id or a list of ids.
  std::vector<int> token_ids(const char* key);

  // Without a note for the default: for keys that files usually leave out.
  void quiet(bool on) { quiet_ = on; }
  void ill_formed(std::string_view key, std::string_view expected);  // shows the value found
  void broken(std::string what);                                     // the file contradicts itself
  void unsupported(std::string what);                                // understood, and not something we run
  void note(std::string text) { notes_.push_back(std::move(text)); }

  bool ok() const { return broken_.empty() && unsupported_.empty(); }
  Error error() const;
  const std::vector<std::string>& notes() const { return notes_; }
  const std::set<std::string>& known() const { return known_; }
  // A value shortened for a message.
  static std::string shown(const nlohmann::json& value);

 private:
  const nlohmann::json& object_;
  std::string file_;
  std::set<std::string> known_{};
  std::vector<std::string> broken_{};
  std::vector<std::string> unsupported_{};
  std::vector<std::string> notes_{};
  bool quiet_ = false;
};

}  // namespace plumb
