// Request bodies are untrusted: one pass, bounded depth, no duplicate keys, UTF-8 only.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

#include "base/result.h"

namespace plumb {

// Keeps the order of keys, since templates print objects as they came. Fails with Code::Usage and the byte position.
Result<nlohmann::ordered_json> parse_strict_json(std::string_view text, int max_depth = 100);

// In one line; bytes that are no UTF-8 become U+FFFD.
std::string printed(const nlohmann::ordered_json& json);

// `text` as a JSON string with its quotes; bytes that are no UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);

}  // namespace plumb
