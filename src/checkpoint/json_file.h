// JSON read strictly: duplicate keys, deep nesting, invalid UTF-8 and numbers outside double are errors that name the
// file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace plumb {

struct JsonLimits {
  int depth = 64;
  size_t bytes = 256u << 20;  // an index of 60,000 tensors has 6 MB
};

Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes);
Result<nlohmann::json> parse_json(std::string_view text, std::string_view file, const JsonLimits& limits = {});
Result<nlohmann::json> read_json(const std::filesystem::path& path, const JsonLimits& limits = {});
// Writes `text` under a temporary name, syncs, renames.
Status write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace plumb
