// Two JSON schemas that must both hold, as one. Included by .cpp files only.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace plumb::grammar {

using Json = nlohmann::ordered_json;

// Neither has "$ref" or "allOf" at its top; "const" has become an "enum" of one. What can't be decided at once stays
// inside as "allOf". Errors (Code::Usage) name the keyword that cannot be joined.
Result<Json> merge_schemas(const Json& a, const Json& b, const std::string& path);

// Whether no value can satisfy both: what "oneOf" needs. False when it can't be told.
bool disjoint_schemas(const Json& a, const Json& b);

}  // namespace plumb::grammar
