#include "serve/responses_writer.h"

#include <nlohmann/json.hpp>

#include "serve/strict_json.h"

namespace plumb {

namespace {

using Json = nlohmann::ordered_json;

std::string in_quotes(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

}  // namespace

std::string ResponsesWriter::event(std::string_view type, const std::string& members) {
  std::string out = "event: ";
  out.append(type).append("\ndata: {\"type\":\"").append(type).append("\",\"sequence_number\":");
  return out + std::to_string(sequence_++) + (members.empty() ? "" : ",") + members + "}\n\n";
}

std::string ResponsesWriter::response_json(std::string_view status, const std::string& output, const UsageFacts* usage,
                                           const ApiError* error) const {
  std::string out = "{\"id\":" + in_quotes(facts_.id) +
                    ",\"object\":\"response\",\"created_at\":" + std::to_string(facts_.created) + ",\"status\":\"" +
                    std::string(status) + "\",\"model\":" + in_quotes(facts_.model) + ",\"output\":[" + output + "]";
  out += error == nullptr
             ? ",\"error\":null"
             : ",\"error\":" +
                   printed({{"code", error->code.empty() ? "server_error" : error->code}, {"message", error->message}});
  out += status == "incomplete" ? R"(,"incomplete_details":{"reason":"max_output_tokens"})"
                                : ",\"incomplete_details\":null";
  out += facts_.echo_json + R"(,"previous_response_id":null,"store":false,"truncation":"disabled","background":false)";
  if (usage != nullptr) {
    out += ",\"usage\":" + printed({{"input_tokens", usage->prompt_tokens},
                                    {"input_tokens_details", {{"cached_tokens", usage->cached_tokens}}},
                                    {"output_tokens", usage->completion_tokens},
                                    {"output_tokens_details", {{"reasoning_tokens", usage->reasoning_tokens}}},
                                    {"total_tokens", usage->prompt_tokens + usage->completion_tokens}});
  } else {
    out += ",\"usage\":null";
  }
  return out + '}';
}

std::string ResponsesWriter::item_json(const Item& item, std::string_view status, bool with_text) const {
  const std::string head = "{\"id\":" + in_quotes(item.id) + ",\"status\":\"" + std::string(status) + "\",\"type\":";
  const std::string text = in_quotes(with_text ? item.text : "");
  if (item.kind == Kind::Call) {
    return head + "\"function_call\",\"call_id\":" + in_quotes(item.call_id) + ",\"name\":" + in_quotes(item.name) +
           ",\"arguments\":" + text + '}';
  }
  if (item.kind == Kind::Reasoning) {
    return head + "\"reasoning\",\"summary\":[],\"content\":[" +
           (with_text ? "{\"type\":\"reasoning_text\",\"text\":" + text + '}' : "") + "]}";
  }
  return head + "\"message\",\"role\":\"assistant\",\"content\":[" +
         (with_text ? "{\"type\":\"output_text\",\"text\":" + text + ",\"annotations\":[],\"logprobs\":[]}" : "") +
         "]}";
}

// Members that say where an event belongs.
std::string ResponsesWriter::place() const {
  const std::string at = "\"item_id\":" + in_quotes(item_.id) + ",\"output_index\":" + std::to_string(items_);
  return item_.kind == Kind::Call ? at : at + ",\"content_index\":0";
}

std::string ResponsesWriter::begin(int) {
  const std::string response = "\"response\":" + response_json("in_progress", "", nullptr, nullptr);
  std::string out = event("response.created", response);
  return out += event("response.in_progress", response);
}

void ResponsesWriter::open(Kind kind, const CallDelta* call, std::string& out) {
  if (item_.kind == kind && kind != Kind::Call) return;
  close("completed", out);
  static constexpr const char* kPrefixes[] = {"", "rs_", "msg_", "fc_"};
  item_ = {.kind = kind,
           .id = kPrefixes[static_cast<size_t>(kind)] + facts_.id.substr(facts_.id.find('_') + 1) + '_' +
                 std::to_string(items_)};
  if (call != nullptr) {
    item_.name = call->name;
    item_.call_id = call_id(facts_.id, 0, call->index);
  }
  out += event("response.output_item.added",
               "\"output_index\":" + std::to_string(items_) + ",\"item\":" + item_json(item_, "in_progress", false));
  if (kind == Kind::Call) return;
  const bool message = kind == Kind::Message;
  out += event("response.content_part.added",
               place() + (message ? R"(,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]})"
                                  : R"(,"part":{"type":"reasoning_text","text":""})"));
}

void ResponsesWriter::add_text(std::string_view text, std::string& out) {
  item_.text += text;
  const bool message = item_.kind == Kind::Message;
  const char* type = message                    ? "response.output_text.delta"
                     : item_.kind == Kind::Call ? "response.function_call_arguments.delta"
                                                : "response.reasoning_text.delta";
  out += event(type, place() + ",\"delta\":" + in_quotes(text) + (message ? ",\"logprobs\":[]" : ""));
}

void ResponsesWriter::close(std::string_view status, std::string& out) {
  if (item_.kind == Kind::None) return;
  const std::string text = in_quotes(item_.text);
  if (item_.kind == Kind::Call) {
    out += event("response.function_call_arguments.done",
                 place() + ",\"name\":" + in_quotes(item_.name) + ",\"arguments\":" + text);
  } else {
    const bool message = item_.kind == Kind::Message;
    out += event(message ? "response.output_text.done" : "response.reasoning_text.done",
                 place() + ",\"text\":" + text + (message ? ",\"logprobs\":[]" : ""));
    out += event("response.content_part.done",
                 place() + ",\"part\":{\"type\":" +
                     (message ? "\"output_text\",\"annotations\":[],\"logprobs\":[]" : "\"reasoning_text\"") +
                     ",\"text\":" + text + '}');
  }
  const std::string item = item_json(item_, status, true);
  out += event("response.output_item.done", "\"output_index\":" + std::to_string(items_) + ",\"item\":" + item);
  output_ += (output_.empty() ? "" : ",") + item;
  ++items_;
  item_ = {};
}

std::string ResponsesWriter::delta(int, const ChoiceDelta& delta, int64_t&) {
  std::string out;
  if (!delta.reasoning.empty()) {
    open(Kind::Reasoning, nullptr, out);
    add_text(delta.reasoning, out);
  }
  if (!delta.content.empty()) {
    open(Kind::Message, nullptr, out);
    add_text(delta.content, out);
  }
  for (const CallDelta& call : delta.calls) {
    if (!call.name.empty()) open(Kind::Call, &call, out);
    if (!call.arguments.empty() && item_.kind == Kind::Call) add_text(call.arguments, out);
  }
  return out;
}

std::string ResponsesWriter::end(int, const ChoiceEnd& end) {
  std::string out;
  cut_ = end.finish_reason == "length";
  if (item_.kind == Kind::None && items_ == 0) open(Kind::Message, nullptr, out);
  close(cut_ ? "incomplete" : "completed", out);
  return out;
}

std::string ResponsesWriter::finish(const UsageFacts& usage) {
  const char* status = cut_ ? "incomplete" : "completed";
  return event(std::string("response.") + status, "\"response\":" + response_json(status, output_, &usage, nullptr));
}

std::string ResponsesWriter::failed(const ApiError& error) {
  return event("response.failed", "\"response\":" + response_json("failed", output_, nullptr, &error));
}

// The whole answer is what the last event of a stream holds.
std::string ResponsesWriter::whole(const std::vector<WholeChoice>& choices, const UsageFacts& usage) {
  const WholeChoice& choice = choices.front();
  int64_t unused = 0;
  delta(0, {.reasoning = choice.text.reasoning, .content = choice.text.content}, unused);
  for (const CallDelta& call : choice.text.calls) delta(0, {.calls = {call}}, unused);
  end(0, choice.end);
  return response_json(cut_ ? "incomplete" : "completed", output_, &usage, nullptr);
}

}  // namespace plumb
