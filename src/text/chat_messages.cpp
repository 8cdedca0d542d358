#include "text/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

Error bad(std::string_view where, std::string_view what, std::vector<std::string> works = {}) {
  return {Code::Usage, fmt::format("{}: {}", where, what), {}, std::move(works)};
}

bool is_text_part(const Json& part) {
  return part.is_object() && part.contains("type") && part["type"] == "text" && part.contains("text") &&
         part["text"].is_string();
}

// A part that only some templates know, and only within tool results: it names tools, and carries no media.
bool is_tool_reference(const Json& part) {
  return part.is_object() && part.contains("type") && part["type"] == "tool_reference";
}

Status prepare_content(Json& message, std::string_view where) {
  const std::string place = fmt::format("{}.content", where);
  const bool calls =
      message["role"] == "assistant" && message.contains("tool_calls") && !message["tool_calls"].is_null();
  const auto it = message.find("content");
  if (it == message.end() || it->is_null()) {
    const bool reasoning = message["role"] == "assistant" && message.contains("reasoning_content");
    if (!calls && !reasoning) return bad(place, "is missing", {"a string", "a list of text parts"});
    message["content"] = nullptr;
    return {};
  }
  if (it->is_string()) return {};
  if (!it->is_array()) return bad(place, "is neither a string nor a list of parts");
  std::string joined;
  bool only_text = true;
  for (size_t i = 0; i < it->size(); ++i) {
    const Json& part = (*it)[i];
    if (is_text_part(part)) {
      joined += part["text"].get_ref<const std::string&>();
    } else if (message["role"] == "tool" && is_tool_reference(part)) {
      only_text = false;
    } else {
      return bad(fmt::format("{}[{}]", place, i), "is not a text part; this model takes no images, audio or files",
                 {R"({"type": "text", "text": "..."})"});
    }
  }
  if (only_text) *it = std::move(joined);
  return {};
}

Status prepare_arguments(Json& arguments, std::string_view where) {
  if (arguments.is_object()) return {};
  if (arguments.is_null() || (arguments.is_string() && arguments.get_ref<const std::string&>().empty())) {
    arguments = Json::object();
    return {};
  }
  Json parsed;
  if (arguments.is_string()) parsed = Json::parse(arguments.get_ref<const std::string&>(), nullptr, false);
  if (!parsed.is_object()) return bad(where, "is not a JSON object, nor a string of one");
  arguments = std::move(parsed);
  return {};
}

Status prepare_tool_calls(Json& message, std::string_view where) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return {};
  if (!calls->is_array()) return bad(fmt::format("{}.tool_calls", where), "is not a list");
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    const std::string place = fmt::format("{}.tool_calls[{}].function", where, i);
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
      return bad(place, "is missing");
    Json& function = call["function"];
    if (!function.contains("name") || !function["name"].is_string()) return bad(place + ".name", "is missing");
    PLUMB_TRY_STATUS(prepare_arguments(function["arguments"], place + ".arguments"));
  }
  return {};
}

Status prepare_message(Json& message, std::string_view where, const ChatTemplate& chat) {
  static constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (!message.is_object()) return bad(where, "is not an object");
  const auto role = message.find("role");
  const bool known = role != message.end() && role->is_string() &&
                     std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) != kRoles.end();
  if (!known)
    return bad(fmt::format("{}.role", where), role == message.end() ? "is missing" : "is not a known role",
               {kRoles.begin(), kRoles.end()});
  if (*role == "developer" && !chat.mentions("developer")) *role = "system";
  for (const auto& [from, to] :
       {std::pair("reasoning", "reasoning_content"), std::pair("reasoning_content", "reasoning")}) {
    const auto it = message.find(from);
    if (it == message.end()) continue;
    if (!it->is_string() && !it->is_null()) return bad(fmt::format("{}.{}", where, from), "is not a string");
    if (!message.contains(to) && it->is_string()) {
      const Json copy = *it;
      message[to] = copy;
    }
  }
  PLUMB_TRY_STATUS(prepare_content(message, where));
  return prepare_tool_calls(message, where);
}

}  // namespace

Result<Json> prepare_messages(const Json& messages, const ChatTemplate& chat) {
  if (!messages.is_array() || messages.empty()) return bad("messages", "is not a list of at least one message");
  Json out = messages;
  for (size_t i = 0; i < out.size(); ++i)
    PLUMB_TRY_STATUS(prepare_message(out[i], fmt::format("messages[{}]", i), chat));
  return out;
}

}  // namespace plumb
