// JSON Schema (draft 2020-12 as clients produce it) to rules. Every text of the rules validates; not every value that
// validates can be written: properties come in the schema's order, and others than the named ones only where
// additionalProperties says so or no property is named.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/expr.h"

namespace plumb::grammar {

// The rule of a value. Errors (Code::Usage) begin with the path of the offending keyword, as in
// "properties.age.multipleOf: is not offered".
Result<int> add_json_schema(const nlohmann::ordered_json& schema, Rules& rules);

// One argument of a tool: its value as a call writes it, which for strings is the bare text.
struct Argument {
  std::string name{};
  bool required = false;
  Expr value{};
};
// Those that the schema of a tool's parameters names, in its order; errors as above.
Result<std::vector<Argument>> add_arguments(const nlohmann::ordered_json& parameters, Rules& rules);

}  // namespace plumb::grammar
