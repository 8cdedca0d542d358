#include "serve/prompt.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace plumb {

namespace {

using Json = nlohmann::ordered_json;

Json content_json(const ChatMessage& message) {
  if (message.content) return *message.content;
  if (!message.has_parts) return nullptr;
  Json parts = Json::array();
  for (const std::string& text : message.parts) parts.push_back({{"type", "text"}, {"text", text}});
  return parts;
}

Json message_json(const ChatMessage& message, bool knows_developer) {
  const bool rename = message.role == "developer" && !knows_developer;  // never dropped in silence
  Json out = {{"role", rename ? "system" : message.role}, {"content", content_json(message)}};
  if (message.reasoning) {  // templates differ in the name they read
    out["reasoning_content"] = *message.reasoning;
    out["reasoning"] = *message.reasoning;
  }
  if (!message.name.empty()) out["name"] = message.name;
  if (!message.tool_call_id.empty()) out["tool_call_id"] = message.tool_call_id;
  if (message.tool_calls.empty()) return out;
  Json calls = Json::array();
  for (const ToolCallMessage& call : message.tool_calls) {
    Json arguments = Json::parse(call.arguments_json, nullptr, /*allow_exceptions=*/false);
    calls.push_back({{"id", call.id},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}});
  }
  out["tool_calls"] = std::move(calls);
  return out;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Ends the prompt where the last message's own text ends, whatever the template put behind it. Templates strip; the
// white space at the message's end is the caller's and stays.
std::optional<ApiError> cut_after_final_message(const ChatMessage& last, Rendered& rendered) {
  std::string content = last.content.value_or(last.reasoning.value_or(""));
  if (last.has_parts) {
    for (const std::string& part : last.parts) content += part;
  }
  const auto end = std::find_if_not(content.rbegin(), content.rend(), is_space).base();
  const std::string tail(end, content.end());
  content.erase(end, content.end());
  content.erase(content.begin(), std::find_if_not(content.begin(), content.end(), is_space));
  const size_t at = rendered.text.rfind(content);
  if (content.empty() || at == std::string::npos) {
    return bad_request("continue_final_message",
                       "the chat template does not show the last message's text, so it cannot be continued");
  }
  rendered.text.resize(at + content.size());
  std::erase_if(rendered.untrusted, [&](const Span& span) { return span.begin >= rendered.text.size(); });
  for (Span& span : rendered.untrusted) span.end = std::min(span.end, rendered.text.size());
  rendered.text += tail;
  return std::nullopt;
}

}  // namespace

ReasoningStart reasoning_start(std::string_view text, const std::vector<int32_t>& ids, const TagIds& tags) {
  using Start = ReasoningStart;
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (text.ends_with("</think>")) return Start::Off;
  if (text.ends_with("<think>")) return Start::InReasoning;
  // A message that is to be continued may stop in the middle of its reasoning.
  const int32_t begin = tags[MarkupTag::Think], end = tags[MarkupTag::EndThink];
  const auto tag =
      std::find_if(ids.rbegin(), ids.rend(), [&](int32_t id) { return id >= 0 && (id == begin || id == end); });
  return tag != ids.rend() && *tag == begin ? Start::InReasoning : Start::MayBegin;
}

std::variant<RenderedPrompt, ApiError> render_chat(const ServeContext& context, const ServedModel& model,
                                                   const ChatRequest& chat) {
  const ChatTemplate* chat_template = model.services.chat_template;
  if (chat_template == nullptr) {
    return bad_request("messages", "this checkpoint has no chat template; use /v1/completions", "no_chat_template");
  }
  std::optional<ChatTemplate> own;
  if (!chat.chat_template.empty()) {
    Result<ChatTemplate> parsed = chat_template->with_source(chat.chat_template);
    if (!parsed) return bad_request("chat_template", parsed.error().to_string(), "template_error");
    chat_template = &own.emplace(*std::move(parsed));
  }
  const bool knows_developer = chat_template->mentions("developer");
  Json messages = Json::array();
  for (const ChatMessage& message : chat.messages) messages.push_back(message_json(message, knows_developer));
  Json kwargs = Json::object();
  if (!chat.template_kwargs_json.empty()) kwargs = Json::parse(chat.template_kwargs_json, nullptr, false);
  kwargs["add_generation_prompt"] = chat.add_generation_prompt;
  // A choice of "none" describes no tools, so that none is tempting.
  const bool tools = chat.tools.callable();
  if (tools && !model.calls) {
    return bad_request("tools",
                       "'tools': this checkpoint's chat template does not write calls as <tool_call> ... <arg_key>, "
                       "the form that is read here",
                       "unsupported_parameter");
  }
  const Json list = tools ? Json::parse(chat.tools.list_json, nullptr, /*allow_exceptions=*/false) : Json(nullptr);
  Result<Rendered> rendered = chat_template->render(messages, list, kwargs);
  if (!rendered) return bad_request("messages", rendered.error().to_string(), "template_error");
  if (chat.continue_final_message) {
    std::optional<ApiError> error = cut_after_final_message(chat.messages.back(), *rendered);
    if (error) return *std::move(error);
  }
  EncodeOptions options;
  if (!context.options.match_special_in_content) options.untrusted = rendered->untrusted;
  Result<std::vector<int32_t>> ids = model.services.tokenizer->encode(rendered->text, options);
  if (!ids) return bad_request("messages", ids.error().to_string(), "tokenizer_error");
  RenderedPrompt prompt{.text = std::move(rendered->text), .ids = *std::move(ids)};
  prompt.reasoning = reasoning_start(prompt.text, prompt.ids, model.tags);
  return prompt;
}

}  // namespace plumb
