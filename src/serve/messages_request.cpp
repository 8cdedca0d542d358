// Anthropic's Messages.
#include "serve/other_requests.h"

#include "serve/fields.h"
#include "serve/strict_json.h"

namespace plumb {

namespace {

class Reader {
 public:
  explicit Reader(const Json& root) : fields_(root, "") {}

  Equivalent read() {
    for (const char* name : {"model", "stream", "temperature", "top_p", "top_k"}) pass(name, name);
    if (fields_.find("max_tokens") == nullptr) fields_.fail("max_tokens", "is missing", "missing_required_parameter");
    pass("max_tokens", "max_tokens");
    pass("stop_sequences", "stop");
    if (out_.value("stream", Json(false)) == true) out_["stream_options"] = {{"include_usage", true}};
    read_system();
    read_messages();
    read_tools();
    read_tool_choice();
    read_thinking();
    fields_.neutral("metadata");
    const std::string tier = fields_.text("service_tier", "auto");
    if (tier != "auto" && tier != "standard_only")
      fields_.fail("service_tier", "is not offered", "unsupported_parameter");
    for (const char* name : {"container", "mcp_servers", "context_management"}) {
      fields_.not_offered(name, nullptr, "this belongs to the provider's own service");
    }
    for (const std::string& name : fields_.unknown()) pass(name.c_str(), name.c_str());
    if (fields_.error()) return *fields_.error();
    out_["messages"] = std::move(messages_);
    return EquivalentBody{.body = out_.dump(-1, ' ', false, Json::error_handler_t::replace)};
  }

 private:
  void pass(const char* from, const char* to) {
    if (const Json* value = fields_.find(from); value != nullptr) out_[to] = *value;
  }
  void fail(const std::string& path, std::string message, std::string code = "invalid_value") {
    fields_.fail(path, std::move(message), std::move(code));
  }
  static std::string type_of(const Json& block) {
    return block.is_object() && block.value("type", Json()).is_string() ? block["type"].get<std::string>() : "";
  }

  // A string, or a list of text blocks, as chat parts.
  Json texts(const Json& value, const std::string& path) {
    if (value.is_string()) return value;
    if (!value.is_array()) {
      fail(path, "is " + shown(value) + ", expected a string or a list of text blocks", "invalid_type");
      return "";
    }
    Json parts = Json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string where = path + "[" + std::to_string(i) + "]";
      if (type_of(value[i]) != "text") {
        fail(where, "is no text block; this model reads text only", "unsupported_content");
      } else if (!value[i].value("text", Json()).is_string()) {
        fail(where + ".text", "is missing or no string", "invalid_type");
      } else {
        parts.push_back({{"type", "text"}, {"text", value[i]["text"]}});
      }
    }
    return parts;
  }

  void read_system() {
    if (const Json* system = fields_.find("system"); system != nullptr) {
      messages_.push_back({{"role", "system"}, {"content", texts(*system, "system")}});
    }
  }

  void read_messages() {
    const Json* list = fields_.find("messages");
    if (list == nullptr || !list->is_array() || list->empty()) {
      return fail("messages", "is missing, empty or no list", "missing_required_parameter");
    }
    for (size_t i = 0; i < list->size() && fields_.ok(); ++i) {
      const std::string path = "messages[" + std::to_string(i) + "]";
      const Json& message = (*list)[i];
      const std::string role =
          message.is_object() ? message.value("role", Json("")).is_string() ? message.value("role", "") : "" : "";
      if (role != "user" && role != "assistant") return fail(path + ".role", "must be user or assistant");
      if (!message.contains("content")) return fail(path + ".content", "is missing", "missing_required_parameter");
      const Json& content = message["content"];
      if (!content.is_array()) {
        messages_.push_back({{"role", role}, {"content", texts(content, path + ".content")}});
      } else if (role == "user") {
        user_blocks(content, path + ".content");
      } else {
        assistant_blocks(content, path + ".content");
      }
    }
  }

  // Results of calls become tool messages; they come first, as the model has to see them before what is said next.
  void user_blocks(const Json& content, const std::string& path) {
    Json parts = Json::array();
    for (size_t i = 0; i < content.size(); ++i) {
      const Json& block = content[i];
      const std::string where = path + "[" + std::to_string(i) + "]";
      if (type_of(block) == "tool_result") {
        if (!block.value("tool_use_id", Json()).is_string())
          return fail(where + ".tool_use_id", "is missing", "missing_required_parameter");
        const Json result = block.contains("content") ? texts(block["content"], where + ".content") : Json("");
        messages_.push_back({{"role", "tool"}, {"tool_call_id", block["tool_use_id"]}, {"content", result}});
      } else {
        const Json one = texts(Json::array({block}), where);
        if (fields_.ok()) parts.push_back(one[0]);
      }
    }
    if (!parts.empty()) messages_.push_back({{"role", "user"}, {"content", std::move(parts)}});
  }

  void assistant_blocks(const Json& content, const std::string& path) {
    std::string text, thinking;
    Json calls = Json::array();
    for (size_t i = 0; i < content.size(); ++i) {
      const Json& block = content[i];
      const std::string where = path + "[" + std::to_string(i) + "]", type = type_of(block);
      const auto string_of = [&](const char* name) {
        if (block.value(name, Json()).is_string()) return block[name].get<std::string>();
        fail(where + "." + name, "is missing or no string", "invalid_type");
        return std::string();
      };
      if (type == "text") {
        text += string_of("text");
      } else if (type == "thinking") {
        thinking += string_of("thinking");
      } else if (type == "tool_use") {
        const Json input = block.value("input", Json::object());
        if (!input.is_object()) return fail(where + ".input", "is no object", "invalid_type");
        calls.push_back({{"id", string_of("id")},
                         {"type", "function"},
                         {"function",
                          {{"name", string_of("name")},
                           {"arguments", input.dump(-1, ' ', false, Json::error_handler_t::replace)}}}});
      } else {
        return fail(where + ".type", "is \"" + type.substr(0, 40) + "\", expected text, thinking or tool_use",
                    "unsupported_content");
      }
    }
    Json message = {{"role", "assistant"}, {"content", text}};
    if (!thinking.empty()) message["reasoning_content"] = thinking;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    messages_.push_back(std::move(message));
  }

  void read_tools() {
    const Json* list = fields_.find("tools");
    if (list == nullptr) return;
    if (!list->is_array()) return fail("tools", "is " + shown(*list) + ", expected a list", "invalid_type");
    Json tools = Json::array();
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string path = "tools[" + std::to_string(i) + "]";
      const Json& tool = (*list)[i];
      if (!tool.is_object()) return fail(path, "is no object", "invalid_type");
      const std::string type = type_of(tool);
      if (!type.empty() && type != "custom")
        return fail(path + ".type", "is \"" + type.substr(0, 40) + "\": the server runs no tools",
                    "unsupported_parameter");
      if (!tool.contains("name")) return fail(path + ".name", "is missing", "missing_required_parameter");
      Json function = {{"name", tool["name"]}};
      if (tool.contains("description")) function["description"] = tool["description"];
      if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    out_["tools"] = std::move(tools);
  }

  void read_tool_choice() {
    const Json* choice = fields_.find("tool_choice");
    if (choice == nullptr) return;
    const std::string type = type_of(*choice);
    if (type == "auto" || type == "none") {
      out_["tool_choice"] = type;
    } else if (type == "any") {
      out_["tool_choice"] = "required";
    } else if (type == "tool" && choice->contains("name")) {
      out_["tool_choice"] = {{"type", "function"}, {"function", {{"name", (*choice)["name"]}}}};
    } else {
      return fail("tool_choice", "is " + shown(*choice) + ", expected the type auto, any, none or tool with a name");
    }
    if (choice->value("disable_parallel_tool_use", Json(false)) == true) out_["parallel_tool_calls"] = false;
  }

  // There is no budget to keep to here: thinking is on or off, and off where the request does not ask for it.
  void read_thinking() {
    const Json* thinking = fields_.find("thinking");
    const std::string type = thinking == nullptr ? "disabled" : type_of(*thinking);
    if (type != "enabled" && type != "disabled" && type != "adaptive")
      return fail("thinking.type", "must be enabled, adaptive or disabled");
    out_["chat_template_kwargs"] = {{"enable_thinking", type != "disabled"}};
  }

  Fields fields_;
  Json out_ = Json::object();
  Json messages_ = Json::array();
};

}  // namespace

Equivalent chat_of_messages(std::string_view body) {
  const Result<Json> root = parse_strict_json(body);
  if (!root) return bad_request("", root.error().what, "invalid_json");
  if (!root->is_object()) return bad_request("", "the body is no JSON object", "invalid_json");
  return Reader(*root).read();
}

}  // namespace plumb
