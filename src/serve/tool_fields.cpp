#include "serve/tool_fields.h"

#include <algorithm>

namespace plumb {

namespace {

constexpr size_t kMaxTools = 1024;

bool valid_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-';
  });
}

void read_tool(Fields& fields, const Json& tool, const std::string& path, ToolRequest& out) {
  if (!tool.is_object()) return fields.fail(path, "is " + shown(tool) + ", expected an object", "invalid_type");
  Fields outer(tool, path);
  const std::string type = outer.text("type", "function");
  if (type != "function") {
    outer.fail("type", "is \"" + type.substr(0, 40) + "\", only \"function\" works", "unsupported_parameter");
  }
  const Json* function = outer.find("function");
  if (outer.error()) return fields.fail(*outer.error());
  if (function == nullptr || !function->is_object()) {
    return fields.fail(path + ".function", "is missing or no object", "missing_required_parameter");
  }
  Fields inner(*function, path + ".function");
  ToolSpec spec{.name = inner.text("name"), .strict = inner.boolean("strict", false)};
  (void)inner.text("description");
  if (!valid_name(spec.name)) inner.fail("name", "must be 1 to 64 of A-Z, a-z, 0-9, _ and -");
  const bool twice = std::ranges::any_of(out.specs, [&](const ToolSpec& other) { return other.name == spec.name; });
  if (twice) inner.fail("name", "names a second function '" + spec.name + "'");
  if (const Json* parameters = inner.find("parameters"); parameters != nullptr) {
    if (!parameters->is_object())
      inner.fail("parameters", "is " + shown(*parameters) + ", expected a schema", "invalid_type");
    spec.parameters_json = parameters->dump();
  }
  if (inner.error()) return fields.fail(*inner.error());
  out.specs.push_back(std::move(spec));
}

void read_choice(Fields& fields, ToolRequest& out) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  const std::pair<const char*, ToolChoice> words[] = {
      {"none", ToolChoice::None}, {"auto", ToolChoice::Auto}, {"required", ToolChoice::Required}};
  for (const auto& [word, meaning] : words) {
    if (*choice != word) continue;
    out.choice = meaning;
    if (meaning == ToolChoice::Required && out.specs.empty())
      fields.fail("tool_choice", "is \"required\" without tools");
    return;
  }
  const bool named = choice->is_object() && choice->value("type", Json()) == "function" &&
                     choice->contains("function") && (*choice)["function"].is_object() &&
                     (*choice)["function"].value("name", Json()).is_string();
  if (!named) {
    return fields.fail("tool_choice", "is " + shown(*choice) +
                                          ", expected \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                                          "\"function\": {\"name\": ...}}");
  }
  out.choice = ToolChoice::Named;
  out.named = (*choice)["function"]["name"].get<std::string>();
  const bool known = std::ranges::any_of(out.specs, [&](const ToolSpec& tool) { return tool.name == out.named; });
  if (!known)
    fields.fail("tool_choice.function.name", "is \"" + out.named.substr(0, 80) + "\", which is none of the tools");
}

}  // namespace

void read_tools(Fields& fields, ToolRequest& out) {
  fields.not_offered("functions", Json::array(), "the older form is not read; use tools");
  fields.not_offered("function_call", "none", "the older form is not read; use tool_choice");
  if (const Json* list = fields.find("tools"); list != nullptr) {
    if (!list->is_array()) return fields.fail("tools", "is " + shown(*list) + ", expected a list", "invalid_type");
    if (list->size() > kMaxTools) return fields.fail("tools", "has over 1024 entries");
    for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
      read_tool(fields, (*list)[i], "tools[" + std::to_string(i) + "]", out);
    }
    if (!out.specs.empty()) out.list_json = list->dump();
  }
  out.parallel = fields.boolean("parallel_tool_calls", true);
  read_choice(fields, out);
}

}  // namespace plumb
