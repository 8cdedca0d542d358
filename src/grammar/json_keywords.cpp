#include "grammar/json_keywords.h"

#include <map>
#include <set>

namespace plumb::grammar {

namespace {

// Say nothing about the value.
const std::set<std::string>& annotations() {
  static const std::set<std::string> kNames = {
      "title",   "description", "default",      "example",         "examples",         "deprecated",   "readOnly",
      "$schema", "$id",         "$comment",     "$defs",           "definitions",      "writeOnly",    "discriminator",
      "$anchor", "nullable",    "externalDocs", "contentEncoding", "contentMediaType", "contentSchema"};
  return kNames;
}

const std::set<std::string>& assertions() {
  static const std::set<std::string> kNames = {"$ref",
                                               "allOf",
                                               "anyOf",
                                               "oneOf",
                                               "type",
                                               "enum",
                                               "const",
                                               "properties",
                                               "required",
                                               "additionalProperties",
                                               "propertyNames",
                                               "minProperties",
                                               "maxProperties",
                                               "patternProperties",
                                               "items",
                                               "prefixItems",
                                               "minItems",
                                               "maxItems",
                                               "uniqueItems",
                                               "minLength",
                                               "maxLength",
                                               "pattern",
                                               "format",
                                               "minimum",
                                               "maximum",
                                               "exclusiveMinimum",
                                               "exclusiveMaximum",
                                               "multipleOf"};
  return kNames;
}

}  // namespace

bool is_annotation(const std::string& key) { return annotations().contains(key) || key.starts_with("x-"); }
bool is_assertion(const std::string& key) { return assertions().contains(key); }

std::string_view format_pattern(std::string_view format) {
#define PLUMB_DATE \
  "[1-9]\\d{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
#define PLUMB_TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:0\\d|1[0-4]):[0-5]\\d)"
#define PLUMB_BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define PLUMB_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
  static const std::map<std::string_view, std::string_view> kPatterns = {
      {"date", PLUMB_DATE},
      {"time", PLUMB_TIME},
      {"date-time", PLUMB_DATE "T" PLUMB_TIME},
      {"duration", "P(?:\\d{1,4}D(?:T\\d{1,2}H)?|T\\d{1,2}H(?:\\d{1,2}M)?|T\\d{1,4}M|T\\d{1,4}S)"},
      {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"},
      {"email", "[A-Za-z0-9_+-]{1,30}(?:\\.[A-Za-z0-9_+-]{1,20}){0,2}@" PLUMB_LABEL "(?:\\." PLUMB_LABEL
                "){0,2}\\.[A-Za-z]{2,10}"},
      {"hostname", PLUMB_LABEL "(?:\\." PLUMB_LABEL "){0,4}"},
      {"ipv4", PLUMB_BYTE "(?:\\." PLUMB_BYTE "){3}"},
      {"ipv6", "[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}"},
      {"uri", "https?://" PLUMB_LABEL "(?:\\." PLUMB_LABEL "){0,4}(?::[1-9]\\d{0,3})?(?:/[A-Za-z0-9._~-]{0,40}){0,8}"}};
#undef PLUMB_DATE
#undef PLUMB_TIME
#undef PLUMB_BYTE
#undef PLUMB_LABEL
  const auto it = kPatterns.find(format);
  return it == kPatterns.end() ? std::string_view() : it->second;
}

std::string dumped(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

bool has_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  return type == "number" && value.is_number();
}

std::vector<std::string> implied_types(const Json& flat) {
  static const std::pair<const char*, const char*> kImplied[] = {{"properties", "object"},
                                                                 {"required", "object"},
                                                                 {"additionalProperties", "object"},
                                                                 {"minProperties", "object"},
                                                                 {"maxProperties", "object"},
                                                                 {"patternProperties", "object"},
                                                                 {"propertyNames", "object"},
                                                                 {"items", "array"},
                                                                 {"prefixItems", "array"},
                                                                 {"minItems", "array"},
                                                                 {"maxItems", "array"},
                                                                 {"uniqueItems", "array"},
                                                                 {"minLength", "string"},
                                                                 {"maxLength", "string"},
                                                                 {"pattern", "string"},
                                                                 {"format", "string"},
                                                                 {"minimum", "number"},
                                                                 {"maximum", "number"},
                                                                 {"exclusiveMinimum", "number"},
                                                                 {"exclusiveMaximum", "number"},
                                                                 {"multipleOf", "number"}};
  for (const auto& [key, type] : kImplied)
    if (flat.contains(key)) return {type};
  return {};
}

}  // namespace plumb::grammar
