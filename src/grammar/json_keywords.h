// JSON Schema's keywords: which say something about a value, and of which type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/schema_merge.h"

namespace plumb::grammar {

bool is_annotation(const std::string& key);  // says nothing about the value
bool is_assertion(const std::string& key);   // offered, and says something
// Regular expression of a format whose texts are worth enforcing; "": an annotation, as the standard has it.
std::string_view format_pattern(std::string_view format);
std::string dumped(const Json& value);
bool has_type(const Json& value, const std::string& type);
// Without "type" a keyword speaks of one type only; keeping to that type is enough to satisfy it.
std::vector<std::string> implied_types(const Json& flat);

}  // namespace plumb::grammar
