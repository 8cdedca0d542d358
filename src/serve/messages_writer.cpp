#include "serve/messages_writer.h"

#include <nlohmann/json.hpp>

#include "serve/strict_json.h"

namespace plumb {

namespace {

using Json = nlohmann::ordered_json;

std::string event(std::string_view name, const std::string& json) {
  return "event: " + std::string(name) + "\ndata: " + json + "\n\n";
}

// A refusal that ends a text is told apart from a limit and a tool call by this word alone.
Json stop_reason(const ChoiceEnd& end) {
  if (end.finish_reason == "length") return "max_tokens";
  if (end.finish_reason == "tool_calls") return "tool_use";
  return end.stop_reason_json.starts_with('"') ? "stop_sequence" : "end_turn";
}
Json stop_sequence(const ChoiceEnd& end) {
  return end.stop_reason_json.starts_with('"') ? Json::parse(end.stop_reason_json, nullptr, false) : Json(nullptr);
}

// Tokens from the cache are counted apart from the other prompt tokens there.
Json usage_object(const UsageFacts& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

Json message_object(const ResponseFacts& facts, Json content, Json reason, Json sequence, Json usage) {
  return {{"id", facts.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", facts.model},
          {"content", std::move(content)},
          {"stop_reason", std::move(reason)},
          {"stop_sequence", std::move(sequence)},
          {"usage", std::move(usage)}};
}

}  // namespace

std::string messages_error_json(const ApiError& error) {
  const char* type = error.status == 400 || error.status == 413 ? "invalid_request_error"
                     : error.status == 401                      ? "authentication_error"
                     : error.status == 404                      ? "not_found_error"
                     : error.status == 429                      ? "rate_limit_error"
                     : error.status == 503                      ? "overloaded_error"
                                                                : "api_error";
  Json inner = {{"type", type}, {"message", error.message}};
  if (!error.param.empty()) inner["param"] = error.param;
  if (!error.code.empty()) inner["code"] = error.code;
  if (error.incident) {
    inner["incident_id"] = error.incident->id;
    inner["provenance"] = to_json(*error.incident);
  }
  return printed({{"type", "error"}, {"error", std::move(inner)}});
}

std::string MessagesWriter::begin(int) {
  const Json message =
      message_object(facts_, Json::array(), nullptr, nullptr, usage_object({.prompt_tokens = facts_.prompt_tokens}));
  return event("message_start", printed({{"type", "message_start"}, {"message", message}})) +
         event("ping", R"({"type": "ping"})");
}

void MessagesWriter::open(Block block, const std::string& start_json, std::string& out) {
  close(out);
  block_ = block;
  out += event("content_block_start", R"({"type":"content_block_start","index":)" + std::to_string(blocks_) +
                                          ",\"content_block\":" + start_json + '}');
}

void MessagesWriter::close(std::string& out) {
  if (block_ == Block::None) return;
  out += event("content_block_stop", R"({"type":"content_block_stop","index":)" + std::to_string(blocks_) + '}');
  block_ = Block::None;
  ++blocks_;
}

void MessagesWriter::block_delta(std::string_view type, std::string_view member, std::string_view text,
                                 std::string& out) const {
  std::string json = R"({"type":"content_block_delta","index":)" + std::to_string(blocks_) + ",\"delta\":{\"type\":\"";
  json.append(type).append("\",\"").append(member).append("\":");
  append_json_string(json, text);
  out += event("content_block_delta", json + "}}");
}

std::string MessagesWriter::delta(int, const ChoiceDelta& delta, int64_t&) {
  std::string out;
  if (!delta.reasoning.empty()) {
    if (block_ != Block::Thinking) open(Block::Thinking, R"({"type":"thinking","thinking":"","signature":""})", out);
    block_delta("thinking_delta", "thinking", delta.reasoning, out);
  }
  if (!delta.content.empty()) {
    if (block_ != Block::Text) open(Block::Text, R"({"type":"text","text":""})", out);
    block_delta("text_delta", "text", delta.content, out);
  }
  for (const CallDelta& call : delta.calls) {
    if (!call.name.empty()) {
      call_ = call.index;
      open(Block::Tool,
           printed({{"type", "tool_use"},
                    {"id", call_id(facts_.id, 0, call.index)},
                    {"name", call.name},
                    {"input", Json::object()}}),
           out);
    }
    if (!call.arguments.empty() && block_ == Block::Tool && call.index == call_) {
      block_delta("input_json_delta", "partial_json", call.arguments, out);
    }
  }
  return out;
}

std::string MessagesWriter::end(int, const ChoiceEnd& end) {
  std::string out;
  if (block_ == Block::None && blocks_ == 0) open(Block::Text, R"({"type":"text","text":""})", out);
  close(out);
  end_ = end;
  return out;
}

std::string MessagesWriter::finish(const UsageFacts& usage) {
  const Json delta = {{"stop_reason", stop_reason(end_)}, {"stop_sequence", stop_sequence(end_)}};
  return event("message_delta",
               printed({{"type", "message_delta"}, {"delta", delta}, {"usage", usage_object(usage)}})) +
         event("message_stop", R"({"type":"message_stop"})");
}

std::string MessagesWriter::failed(const ApiError& error) { return event("error", messages_error_json(error)); }

std::string MessagesWriter::whole(const std::vector<WholeChoice>& choices, const UsageFacts& usage) {
  const WholeChoice& choice = choices.front();
  Json content = Json::array();
  if (!choice.text.reasoning.empty()) {
    content.push_back({{"type", "thinking"}, {"thinking", choice.text.reasoning}, {"signature", ""}});
  }
  if (!choice.text.content.empty() || (choice.text.calls.empty() && content.empty())) {
    content.push_back({{"type", "text"}, {"text", choice.text.content}});
  }
  for (const CallDelta& call : choice.text.calls) {
    const Json input = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    content.push_back({{"type", "tool_use"},
                       {"id", call_id(facts_.id, 0, call.index)},
                       {"name", call.name},
                       {"input", input.is_object() ? input : Json::object()}});
  }
  return printed(message_object(facts_, std::move(content), stop_reason(choice.end), stop_sequence(choice.end),
                                usage_object(usage)));
}

}  // namespace plumb
