#include "serve/request_messages.h"

#include "serve/strict_json.h"

namespace plumb {

namespace {

constexpr size_t kMaxMessages = 100'000;
constexpr size_t kMaxPrompts = 1024;

void read_parts(Fields& message, const Json& list, ChatMessage& out) {
  out.has_parts = true;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = "content[" + std::to_string(i) + "]";
    const Json& part = list[i];
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      return message.fail(where, "is " + shown(part) + ", expected {\"type\": \"text\", \"text\": ...}",
                          "invalid_type");
    }
    if (part["type"] != "text") {
      return message.fail(where, "has the type " + shown(part["type"]) + ", this model reads text only",
                          "unsupported_content");
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      return message.fail(where, "has no string \"text\"", "invalid_type");
    }
    out.parts.push_back(part["text"].get<std::string>());
  }
}

// Arguments come as a string of JSON; templates want the object. "{}" when there are none.
std::string read_arguments(Fields& function) {
  const Json* arguments = function.find("arguments");
  if (arguments == nullptr) return "{}";
  if (arguments->is_object()) return arguments->dump();
  if (!arguments->is_string()) {
    function.fail("arguments", "is " + shown(*arguments) + ", expected a string of JSON", "invalid_type");
    return "{}";
  }
  const auto& text = arguments->get_ref<const std::string&>();
  const Result<Json> parsed = parse_strict_json(text.empty() ? "{}" : text);
  if (parsed && parsed->is_object()) return parsed->dump();
  function.fail("arguments", "is no JSON object written as a string");
  return "{}";
}

void read_tool_call(Fields& message, const Json& call, size_t index, ChatMessage& out) {
  const std::string where = "tool_calls[" + std::to_string(index) + "]";
  if (!call.is_object()) return message.fail(where, "is " + shown(call) + ", expected an object", "invalid_type");
  Fields fields(call, message.path_of(where));
  ToolCallMessage result;
  result.id = fields.text("id");
  const std::string type = fields.text("type", "function");
  if (type != "function") fields.fail("type", "is \"" + type.substr(0, 40) + "\", only \"function\" works");
  const Json* function = fields.find("function");
  if (function == nullptr || !function->is_object()) {
    fields.fail("function", "is missing or no object", "invalid_type");
  } else {
    Fields inner(*function, fields.path_of("function"));
    result.name = inner.text("name");
    if (result.name.empty()) inner.fail("name", "is missing or empty");
    result.arguments_json = read_arguments(inner);
    if (inner.error()) fields.fail(*inner.error());
  }
  if (fields.error()) return message.fail(*fields.error());
  out.tool_calls.push_back(std::move(result));
}

void read_tool_calls(Fields& message, ChatMessage& out) {
  message.not_offered("function_call", nullptr, "the older form is not read; use tool_calls");
  const Json* calls = message.find("tool_calls");
  if (calls == nullptr) return;
  if (!calls->is_array())
    return message.fail("tool_calls", "is " + shown(*calls) + ", expected a list", "invalid_type");
  if (!calls->empty() && out.role != "assistant") {
    return message.fail("tool_calls", "belongs to messages of role assistant, not " + out.role);
  }
  for (size_t i = 0; i < calls->size() && message.ok(); ++i) read_tool_call(message, (*calls)[i], i, out);
}

void read_message(Fields& message, ChatMessage& out) {
  out.role = message.text("role");
  const bool known = out.role == "system" || out.role == "developer" || out.role == "user" || out.role == "assistant" ||
                     out.role == "tool";
  if (!known && message.ok()) {
    const bool older = out.role == "function";
    return message.fail("role", (out.role.empty() ? "is missing" : "is \"" + out.role.substr(0, 40) + "\"") +
                                    ", expected system, developer, user, assistant or tool" +
                                    (older ? "; write the older function results as role tool" : ""));
  }
  out.name = message.text("name");
  out.tool_call_id = message.text("tool_call_id");
  read_tool_calls(message, out);
  for (const char* name : {"reasoning_content", "reasoning"}) {
    if (message.find(name) != nullptr && !out.reasoning) out.reasoning = message.text(name);
  }
  message.not_offered("audio", nullptr, "this model reads text only");
  const Json* content = message.find("content");
  if (content == nullptr) {
    const bool may_lack = out.role == "assistant" && (!out.tool_calls.empty() || out.reasoning);
    if (!may_lack) message.fail("content", "is missing", "missing_required_parameter");
  } else if (content->is_string()) {
    out.content = content->get<std::string>();
  } else if (content->is_array()) {
    read_parts(message, *content, out);
  } else {
    message.fail("content", "is " + shown(*content) + ", expected a string or a list of text parts", "invalid_type");
  }
}

bool id_list(const Json& list) {
  for (const Json& item : list)
    if (!item.is_number()) return false;
  return !list.empty();
}

void read_ids(Fields& fields, const Json& list, const std::string& where, std::vector<Prompt>& prompts,
              const RequestLimits& limits) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const bool valid = item.is_number_integer() && item >= 0 && item < limits.vocab_size;
    if (!valid) {
      return fields.fail(
          where, "holds " + shown(item) + ", expected token ids from 0 to " + std::to_string(limits.vocab_size - 1));
    }
    ids.push_back(item.get<int32_t>());
  }
  prompts.emplace_back(std::move(ids));
}

}  // namespace

void read_messages(Fields& fields, std::vector<ChatMessage>& messages) {
  const Json* list = fields.find("messages");
  if (list == nullptr) return fields.fail("messages", "is missing", "missing_required_parameter");
  if (!list->is_array()) return fields.fail("messages", "is " + shown(*list) + ", expected a list", "invalid_type");
  if (list->empty()) return fields.fail("messages", "is empty, expected at least one message");
  if (list->size() > kMaxMessages) return fields.fail("messages", "has over 100000 entries");
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = "messages[" + std::to_string(i) + "]";
    const Json& item = (*list)[i];
    if (!item.is_object()) return fields.fail(path, "is " + shown(item) + ", expected an object", "invalid_type");
    Fields message(item, path);
    read_message(message, messages.emplace_back());
    if (message.error()) return fields.fail(*message.error());
  }
}

void read_prompts(Fields& fields, std::vector<Prompt>& prompts, const RequestLimits& limits) {
  const Json* value = fields.find("prompt");
  fields.not_offered("prompt_embeds", nullptr, "prompts are text or token ids");
  if (value == nullptr) return fields.fail("prompt", "is missing", "missing_required_parameter");
  if (value->is_string()) {
    prompts.emplace_back(value->get<std::string>());
  } else if (!value->is_array() || value->empty()) {
    return fields.fail("prompt",
                       value->is_array() ? "is an empty list" : "is " + shown(*value) + ", expected text or token ids");
  } else if (id_list(*value)) {
    read_ids(fields, *value, "prompt", prompts, limits);
  } else {
    if (value->size() > kMaxPrompts) return fields.fail("prompt", "has over 1024 prompts");
    for (size_t i = 0; i < value->size() && fields.ok(); ++i) {
      const Json& item = (*value)[i];
      const std::string where = "prompt[" + std::to_string(i) + "]";
      if (item.is_string() && (*value)[0].is_string()) {
        prompts.emplace_back(item.get<std::string>());
      } else if (item.is_array() && (*value)[0].is_array()) {
        read_ids(fields, item, where, prompts, limits);
      } else {
        fields.fail(where, "is " + shown(item) + ", expected strings only or lists of token ids only", "invalid_type");
      }
    }
  }
}

}  // namespace plumb
