// OpenAI's Responses.
#include "serve/fields.h"
#include "serve/other_requests.h"
#include "serve/strict_json.h"

namespace plumb {

namespace {

class Reader {
 public:
  explicit Reader(const Json& root) : fields_(root, "") {}

  Equivalent read() {
    for (const char* name : {"model", "stream", "temperature", "top_p", "parallel_tool_calls", "user", "metadata",
                             "safety_identifier", "prompt_cache_key", "service_tier"}) {
      pass(name, name);
    }
    pass("max_output_tokens", "max_completion_tokens");
    if (out_.value("stream", Json(false)) == true) out_["stream_options"] = {{"include_usage", true}};
    if (const Json* instructions = fields_.find("instructions"); instructions != nullptr) {
      if (!instructions->is_string())
        fail("instructions", "is " + shown(*instructions) + ", expected a string", "invalid_type");
      messages_.push_back({{"role", "system"}, {"content", *instructions}});
    }
    read_input();
    read_tools();
    read_text();
    read_reasoning();
    // Nothing is kept here, so there is nothing to go on from; the answer says "store": false.
    fields_.neutral("store");
    fields_.neutral("stream_options");
    for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
      fields_.not_offered(name, nullptr, "responses are not stored here; send the whole input");
    }
    fields_.not_offered("background", false, "answers come on the connection that asks for them");
    fields_.not_offered("truncation", "disabled", "an input is never cut");
    fields_.not_offered("include", Json::array(), "there is nothing more to include");
    fields_.not_offered("top_logprobs", 0, "use /v1/chat/completions for log-probabilities");
    fields_.not_offered("max_tool_calls", nullptr, "the server runs no tools");
    for (const std::string& name : fields_.unknown()) pass(name.c_str(), name.c_str());
    if (fields_.error()) return *fields_.error();
    out_["messages"] = std::move(messages_);
    return EquivalentBody{.body = out_.dump(-1, ' ', false, Json::error_handler_t::replace), .echo_json = echo()};
  }

 private:
  // Clients expect these in every answer, with their defaults where the request has none.
  std::string echo() {
    const std::pair<const char*, Json> members[] = {{"instructions", nullptr},
                                                    {"max_output_tokens", nullptr},
                                                    {"metadata", Json::object()},
                                                    {"parallel_tool_calls", true},
                                                    {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                                                    {"temperature", nullptr},
                                                    {"text", {{"format", {{"type", "text"}}}}},
                                                    {"tool_choice", "auto"},
                                                    {"tools", Json::array()},
                                                    {"top_p", nullptr},
                                                    {"user", nullptr}};
    std::string out;
    for (const auto& [name, fallback] : members) {
      const Json* value = fields_.find(name);
      out.append(",\"").append(name).append("\":").append(
          (value == nullptr ? fallback : *value).dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    return out;
  }

  void pass(const char* from, const char* to) {
    if (const Json* value = fields_.find(from); value != nullptr) out_[to] = *value;
  }
  void fail(const std::string& path, std::string message, std::string code = "invalid_value") {
    fields_.fail(path, std::move(message), std::move(code));
  }
  static std::string text_of(const Json& object, const char* name) {
    return object.is_object() && object.value(name, Json()).is_string() ? object[name].get<std::string>() : "";
  }

  // Text parts of any of the kinds that hold text.
  std::string joined(const Json& content, const std::string& path) {
    if (content.is_string()) return content.get<std::string>();
    std::string out;
    if (!content.is_array())
      fail(path, "is " + shown(content) + ", expected a string or a list of text parts", "invalid_type");
    for (size_t i = 0; i < (content.is_array() ? content.size() : 0); ++i) {
      const std::string type = text_of(content[i], "type");
      const bool known = type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text" ||
                         type == "summary_text";
      if (!known || !content[i].value("text", Json()).is_string()) {
        fail(path + "[" + std::to_string(i) + "]", "is no text part; this model reads text only",
             "unsupported_content");
        break;
      }
      out += content[i]["text"].get<std::string>();
    }
    return out;
  }

  void read_input() {
    const Json* input = fields_.find("input");
    if (input == nullptr) return fail("input", "is missing", "missing_required_parameter");
    if (input->is_string()) {
      messages_.push_back({{"role", "user"}, {"content", *input}});
      return;
    }
    if (!input->is_array() || input->empty())
      return fail("input", "is " + shown(*input) + ", expected text or a list of items", "invalid_type");
    for (size_t i = 0; i < input->size() && fields_.ok(); ++i)
      read_item((*input)[i], "input[" + std::to_string(i) + "]");
    flush_assistant();
  }

  void read_item(const Json& item, const std::string& path) {
    const std::string type = text_of(item, "type"), role = text_of(item, "role");
    if (type == "function_call") {
      assistant()["tool_calls"].push_back(
          {{"id", text_of(item, "call_id")},
           {"type", "function"},
           {"function", {{"name", text_of(item, "name")}, {"arguments", text_of(item, "arguments")}}}});
    } else if (type == "reasoning") {
      const Json content = item.contains("content") && item["content"].is_array()
                               ? item["content"]
                               : item.value("summary", Json::array());
      assistant()["reasoning_content"] = joined(content, path + ".content");
    } else if (type == "function_call_output") {
      flush_assistant();
      messages_.push_back({{"role", "tool"},
                           {"tool_call_id", text_of(item, "call_id")},
                           {"content", joined(item.value("output", Json("")), path + ".output")}});
    } else if ((type.empty() || type == "message") && !role.empty()) {
      if (!item.contains("content")) return fail(path + ".content", "is missing", "missing_required_parameter");
      const std::string content = joined(item["content"], path + ".content");
      if (role == "assistant") {
        assistant()["content"] = content;
      } else {
        flush_assistant();
        messages_.push_back({{"role", role}, {"content", content}});
      }
    } else {
      fail(path, "is no message, function_call, function_call_output or reasoning item", "unsupported_content");
    }
  }
  // Reasoning, text and calls of one turn are items of their own there and one message here.
  Json& assistant() {
    if (assistant_.is_null()) assistant_ = {{"role", "assistant"}, {"content", ""}};
    return assistant_;
  }
  void flush_assistant() {
    if (!assistant_.is_null()) messages_.push_back(std::move(assistant_));
    assistant_ = nullptr;
  }

  void read_tools() {
    if (const Json* list = fields_.find("tools"); list != nullptr) {
      if (!list->is_array()) return fail("tools", "is " + shown(*list) + ", expected a list", "invalid_type");
      Json tools = Json::array();
      for (size_t i = 0; i < list->size(); ++i) {
        const Json& tool = (*list)[i];
        const std::string path = "tools[" + std::to_string(i) + "]";
        if (text_of(tool, "type") != "function")
          return fail(path + ".type", "is no function: the server runs no tools of its own", "unsupported_parameter");
        Json function = Json::object();
        for (const char* name : {"name", "description", "parameters", "strict"})
          if (tool.contains(name)) function[name] = tool[name];
        tools.push_back({{"type", "function"}, {"function", std::move(function)}});
      }
      out_["tools"] = std::move(tools);
    }
    const Json* choice = fields_.find("tool_choice");
    if (choice == nullptr) return;
    const bool named = text_of(*choice, "type") == "function";
    out_["tool_choice"] =
        named ? Json{{"type", "function"}, {"function", {{"name", text_of(*choice, "name")}}}} : *choice;
  }

  void read_text() {
    const Json* text = fields_.find("text");
    if (text == nullptr) return;
    if (!text->is_object()) return fail("text", "is " + shown(*text) + ", expected an object", "invalid_type");
    const Json format = text->value("format", Json());
    if (format.is_null()) return;
    if (text_of(format, "type") != "json_schema") {
      out_["response_format"] = format;
      return;
    }
    Json inner = Json::object();
    for (const char* name : {"name", "schema", "strict", "description"})
      if (format.contains(name)) inner[name] = format[name];
    out_["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(inner)}};
  }

  void read_reasoning() {
    const Json* reasoning = fields_.find("reasoning");
    if (reasoning == nullptr) return;
    if (!reasoning->is_object())
      return fail("reasoning", "is " + shown(*reasoning) + ", expected an object", "invalid_type");
    if (const std::string effort = text_of(*reasoning, "effort"); !effort.empty()) out_["reasoning_effort"] = effort;
  }

  Fields fields_;
  Json out_ = Json::object();
  Json messages_ = Json::array();
  Json assistant_ = nullptr;
};

}  // namespace

Equivalent chat_of_responses(std::string_view body) {
  const Result<Json> root = parse_strict_json(body);
  if (!root) return bad_request("", root.error().what, "invalid_json");
  if (!root->is_object()) return bad_request("", "the body is no JSON object", "invalid_json");
  return Reader(*root).read();
}

}  // namespace plumb
