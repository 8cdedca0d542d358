#include "serve/tool_schema.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "serve/strict_json.h"

namespace plumb {

using Json = nlohmann::ordered_json;

namespace {

std::string trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin));
}

}  // namespace

// Which types a schema lets through, as far as its keywords say; Any when they don't.
struct TypeReader {
  using Type = ToolSchemas::Type;
  const Json& root;

  static unsigned named(const Json& type) {
    static const std::pair<const char*, unsigned> kNames[] = {
        {"null", Type::Null},       {"boolean", Type::Boolean},
        {"integer", Type::Integer}, {"number", Type::Number | Type::Integer},
        {"string", Type::String},   {"array", Type::Array},
        {"object", Type::Object}};
    for (const auto& [name, bits] : kNames)
      if (type == name) return bits;
    return Type::Any;
  }
  static unsigned of_value(const Json& value) {
    if (value.is_null()) return Type::Null;
    if (value.is_boolean()) return Type::Boolean;
    if (value.is_number_integer()) return Type::Integer;
    if (value.is_number()) return Type::Number;
    if (value.is_string()) return Type::String;
    return value.is_array() ? Type::Array : Type::Object;
  }
  unsigned types(const Json& schema, int depth = 0) const {
    if (!schema.is_object() || depth > 16) return Type::Any;
    unsigned out = Type::Any;
    const auto list = [&](const char* key, const auto& bits) {
      const auto it = schema.find(key);
      if (it == schema.end() || !it->is_array()) return;
      unsigned any = 0;
      for (const Json& one : *it) any |= bits(one);
      out &= any;
    };
    if (const auto it = schema.find("type"); it != schema.end() && it->is_string()) out &= named(*it);
    list("type", named);
    list("enum", of_value);
    if (const auto it = schema.find("const"); it != schema.end()) out &= of_value(*it);
    for (const char* key : {"anyOf", "oneOf"}) list(key, [&](const Json& one) { return types(one, depth + 1); });
    if (const auto it = schema.find("allOf"); it != schema.end() && it->is_array()) {
      for (const Json& one : *it) out &= types(one, depth + 1);
    }
    if (const auto it = schema.find("$ref"); it != schema.end() && it->is_string()) {
      const auto& pointer = it->get_ref<const std::string&>();
      const bool local = pointer.starts_with("#/") && pointer.find('%') == std::string::npos;
      if (local) {
        const Json::json_pointer at(pointer.substr(1));
        if (root.contains(at)) out &= types(root[at], depth + 1);
      }
    }
    return out;
  }
};

ToolSchemas::ToolSchemas(const std::vector<ToolSpec>& tools) {
  for (const ToolSpec& tool : tools) {
    Types& types = tools_[tool.name];
    const Json schema = Json::parse(tool.parameters_json, nullptr, /*allow_exceptions=*/false);
    if (!schema.is_object() || !schema.contains("properties") || !schema["properties"].is_object()) continue;
    const TypeReader reader{schema};
    for (const auto& [name, one] : schema["properties"].items()) types[name] = reader.types(one);
  }
}

unsigned ToolSchemas::types_of(std::string_view tool, std::string_view argument) const {
  const auto entry = tools_.find(tool);
  if (entry == tools_.end()) return Any;
  const auto type = entry->second.find(argument);
  return type == entry->second.end() || type->second == 0 ? static_cast<unsigned>(Any) : type->second;
}

bool ToolSchemas::is_text(std::string_view tool, std::string_view argument) const {
  return types_of(tool, argument) == String;
}

std::string ToolSchemas::value_json(std::string_view tool, std::string_view argument, std::string_view raw) const {
  const unsigned types = types_of(tool, argument);
  std::string out;
  if (types != String) {
    const Result<Json> value = parse_strict_json(raw);
    if (value) {
      const unsigned is = TypeReader::of_value(*value);
      const bool whole = is == Number && (types & Number) == 0 && (types & Integer) != 0;  // 3.0 for an integer
      // Numbers that would lose digits on the way through a double stay as they were written.
      if ((is & types) != 0 && is != String) return value->is_number() ? trimmed(raw) : value->dump();
      if (is == String && (types & String) != 0 && types != Any) return value->dump();
      if (whole && value->get<double>() == static_cast<double>(static_cast<int64_t>(value->get<double>()))) {
        return std::to_string(static_cast<int64_t>(value->get<double>()));
      }
    }
  }
  append_json_string(out, raw);
  return out;
}

}  // namespace plumb
