#include "serve/openai_response.h"

#include <charconv>

#include "serve/strict_json.h"

namespace plumb {

namespace {

void append_int(std::string& out, int64_t value) {
  char text[24];
  const auto result = std::to_chars(text, text + sizeof text, value);
  out.append(text, result.ptr);
}

// Never NaN or infinity: -9999 is the documented floor for "very unlikely".
void append_logprob(std::string& out, float value) {
  if (!(value >= -9999.0f)) value = -9999.0f;
  if (value > 0.0f) value = 0.0f;
  char text[40];
  const auto result = std::to_chars(text, text + sizeof text, value);
  const std::string_view written(text, static_cast<size_t>(result.ptr - text));
  out += written;
  if (written.find_first_of(".e") == std::string_view::npos) out += ".0";
}

// Bytes of the character that begins with this one; 0: none does.
size_t utf8_size(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead >= 0xf5) return 0;
  return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

bool valid_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const size_t size = utf8_size(static_cast<unsigned char>(bytes[i]));
    if (size == 0 || i + size > bytes.size()) return false;
    for (size_t k = 1; k < size; ++k)
      if ((static_cast<unsigned char>(bytes[i + k]) & 0xc0) != 0x80) return false;
    i += size;
  }
  return true;
}

}  // namespace

namespace {

std::string usage_json(const UsageFacts& u) {
  std::string out = "{\"prompt_tokens\":";
  append_int(out, u.prompt_tokens);
  out += ",\"completion_tokens\":";
  append_int(out, u.completion_tokens);
  out += ",\"total_tokens\":";
  append_int(out, u.prompt_tokens + u.completion_tokens);
  out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
  append_int(out, u.cached_tokens);
  out += "},\"completion_tokens_details\":{\"reasoning_tokens\":";
  append_int(out, u.reasoning_tokens);
  out += ",\"accepted_prediction_tokens\":";
  append_int(out, u.accepted_prediction_tokens);
  out += ",\"rejected_prediction_tokens\":";
  append_int(out, u.rejected_prediction_tokens);
  out += "}}";
  return out;
}

}  // namespace

OpenAiWriter::OpenAiWriter(ResponseFacts facts) : facts_(std::move(facts)) {
  const auto head = [this](std::string_view object) {
    std::string out = "{\"id\":";
    append_json_string(out, facts_.id);
    out.append(",\"object\":\"").append(object).append("\",\"created\":");
    append_int(out, facts_.created);
    out += ",\"model\":";
    append_json_string(out, facts_.model);
    if (!facts_.fingerprint.empty()) {
      out += ",\"system_fingerprint\":";
      append_json_string(out, facts_.fingerprint);
    }
    out += ",\"choices\":[";
    return out;
  };
  const bool chat = facts_.endpoint == Endpoint::Chat;
  head_ = head(chat ? "chat.completion" : "text_completion");
  chunk_start_ = "data: " + head(chat ? "chat.completion.chunk" : "text_completion");
  chunk_end_ = facts_.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n";
}

// ---- tokens and their probabilities ----

std::string OpenAiWriter::token_key(int32_t id) const {
  const std::string_view bytes = facts_.tokenizer->token_bytes(id);
  if (valid_utf8(bytes)) return std::string(bytes);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text = "bytes:";  // a part of a character has no text; distinct parts must stay distinct keys
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text.append("\\x").append(1, kHex[byte >> 4]).append(1, kHex[byte & 15]);
  }
  return text;
}

void OpenAiWriter::append_token(std::string& out, const TokenLogprob& token) const {
  out += "{\"token\":";
  append_json_string(out, token_key(token.id));
  out += ",\"logprob\":";
  append_logprob(out, token.logprob);
  out += ",\"bytes\":[";
  bool first = true;
  for (const char c : facts_.tokenizer->token_bytes(token.id)) {
    if (!first) out += ',';
    first = false;
    append_int(out, static_cast<unsigned char>(c));
  }
  out += ']';
}

void OpenAiWriter::append_chat_logprobs(std::string& out, const std::vector<LogprobEntry>& entries) const {
  out += "{\"content\":[";
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i != 0) out += ',';
    append_token(out, entries[i].token);
    out += ",\"top_logprobs\":[";
    const size_t shown = std::min(entries[i].top.size(), static_cast<size_t>(facts_.top_logprobs));
    for (size_t k = 0; k < shown; ++k) {
      if (k != 0) out += ',';
      append_token(out, entries[i].top[k]);
      out += '}';
    }
    out += "]}";
  }
  out += "],\"refusal\":null}";
}

void OpenAiWriter::append_completion_logprobs(std::string& out, const std::vector<LogprobEntry>& entries,
                                              bool first_is_null, int64_t& text_offset) const {
  std::string tokens, values, tops, offsets;
  for (size_t i = 0; i < entries.size(); ++i) {
    const LogprobEntry& entry = entries[i];
    const bool null = first_is_null && i == 0;
    if (i != 0) {
      for (std::string* list : {&tokens, &values, &tops, &offsets}) *list += ',';
    }
    const std::string key = token_key(entry.token.id);
    append_json_string(tokens, key);
    if (null) {
      values += "null";
      tops += "null";
    } else {
      append_logprob(values, entry.token.logprob);
      tops += '{';
      bool has_token = false;
      const size_t shown = std::min(entry.top.size(), static_cast<size_t>(facts_.top_logprobs));
      for (size_t k = 0; k < shown; ++k) {
        if (k != 0) tops += ',';
        append_json_string(tops, token_key(entry.top[k].id));
        tops += ':';
        append_logprob(tops, entry.top[k].logprob);
        has_token = has_token || entry.top[k].id == entry.token.id;
      }
      if (!has_token) {  // the sampled token is always among them
        if (shown != 0) tops += ',';
        append_json_string(tops, key);
        tops += ':';
        append_logprob(tops, entry.token.logprob);
      }
      tops += '}';
    }
    append_int(offsets, text_offset);
    text_offset += count_characters(facts_.tokenizer->token_bytes(entry.token.id));
  }
  out.append("{\"tokens\":[").append(tokens).append("],\"token_logprobs\":[").append(values);
  out.append("],\"top_logprobs\":[").append(tops).append("],\"text_offset\":[").append(offsets).append("]}");
}

// ---- streamed ----

void OpenAiWriter::open_choice(std::string& out, int index) const {
  out += "{\"index\":";
  append_int(out, index);
}

void OpenAiWriter::close_choice(std::string& out, std::string_view finish_reason, std::string_view extra) const {
  out += ",\"finish_reason\":";
  if (finish_reason.empty()) {
    out += "null";
  } else {
    out.append(1, '"').append(finish_reason).append(1, '"');
  }
  out.append(extra).append(1, '}');
}

// "content":..., and reasoning under the name asked for; without the braces.
void OpenAiWriter::append_message_text(std::string& out, const ChoiceDelta& delta) const {
  bool first = true;
  const auto member = [&](std::string_view name, std::string_view text) {
    out.append(first ? "\"" : ",\"").append(name).append("\":");
    append_json_string(out, text);
    first = false;
  };
  if (!delta.reasoning.empty()) {
    if (facts_.reasoning_field != ReasoningField::Reasoning) member("reasoning_content", delta.reasoning);
    if (facts_.reasoning_field != ReasoningField::ReasoningContent) member("reasoning", delta.reasoning);
  }
  if (!delta.content.empty()) member("content", delta.content);
}

// Streamed, the first delta of a call has its id and name and no arguments yet; later ones have arguments alone.
void OpenAiWriter::append_call(std::string& out, int choice, const CallDelta& call, bool streamed) const {
  out += '{';
  if (streamed) {
    out += "\"index\":";
    append_int(out, call.index);
  }
  if (!call.name.empty()) {
    const std::string id = call_id(facts_.id, choice, call.index);
    out.append(streamed ? "," : "").append("\"id\":\"").append(id).append("\",\"type\":\"function\"");
  }
  out.append(out.back() == '{' ? "" : ",").append("\"function\":{");
  if (!call.name.empty()) {
    out += "\"name\":";
    append_json_string(out, call.name);
    out += ',';
  }
  out += "\"arguments\":";
  append_json_string(out, call.arguments);
  out += "}}";
}

std::string OpenAiWriter::end_extra(const ChoiceEnd& end) {
  return ",\"stop_reason\":" + end.stop_reason_json + (end.malformed_call ? ",\"malformed_tool_call\":true" : "");
}

std::string OpenAiWriter::begin(int index) {
  if (facts_.endpoint != Endpoint::Chat) return {};
  std::string out = chunk_start_;
  open_choice(out, index);
  out += ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null";
  close_choice(out, "", "");
  return out += chunk_end_;
}

// A piece of a call is an event of its own: there are clients that look at the first entry of `tool_calls` only.
std::string OpenAiWriter::delta(int index, const ChoiceDelta& delta, int64_t& text_offset) {
  std::string out;
  out.reserve(chunk_start_.size() + delta.content.size() + delta.reasoning.size() + 160);
  const bool text = !delta.reasoning.empty() || !delta.content.empty() || !delta.logprobs.empty();
  if (text || delta.calls.empty()) append_text_delta(out, index, delta, text_offset);
  for (size_t i = 0; i < delta.calls.size(); ++i) {
    out += chunk_start_;
    open_choice(out, index);
    out += ",\"delta\":{\"tool_calls\":[";
    append_call(out, index, delta.calls[i], /*streamed=*/true);
    out += "]},\"logprobs\":null";
    close_choice(out, "", i == 0 && !text ? ids_of(delta) : std::string());
    out += chunk_end_;
  }
  return out;
}

std::string OpenAiWriter::ids_of(const ChoiceDelta& delta) const {
  if (!facts_.token_ids || delta.token_ids.empty()) return {};
  std::string out = ",\"token_ids\":";
  append_ids(out, delta.token_ids);
  return out;
}

void OpenAiWriter::append_text_delta(std::string& out, int index, const ChoiceDelta& delta,
                                     int64_t& text_offset) const {
  out += chunk_start_;
  open_choice(out, index);
  const bool chat = facts_.endpoint == Endpoint::Chat;
  if (chat) {
    out += ",\"delta\":{";
    append_message_text(out, delta);
    out += '}';
  } else {
    out += ",\"text\":";
    append_json_string(out, delta.content);
  }
  out += ",\"logprobs\":";
  if (!facts_.logprobs || delta.logprobs.empty()) {
    out += "null";
  } else if (chat) {
    append_chat_logprobs(out, delta.logprobs);
  } else {
    append_completion_logprobs(out, delta.logprobs, false, text_offset);
  }
  close_choice(out, "", ids_of(delta));
  out += chunk_end_;
}

std::string OpenAiWriter::echo(int index, const WholeChoice& prompt) {
  std::string out = chunk_start_;
  open_choice(out, index);
  out += ",\"text\":";
  append_json_string(out, prompt.prompt_text);
  out += ",\"logprobs\":";
  int64_t offset = 0;
  if (facts_.logprobs) {
    append_completion_logprobs(out, prompt.prompt_logprobs, true, offset);
  } else {
    out += "null";
  }
  close_choice(out, "", "");
  return out += chunk_end_;
}

std::string OpenAiWriter::end(int index, const ChoiceEnd& end) {
  std::string out = chunk_start_;
  open_choice(out, index);
  out += facts_.endpoint == Endpoint::Chat ? ",\"delta\":{}" : ",\"text\":\"\"";
  out += ",\"logprobs\":null";
  close_choice(out, end.finish_reason, end_extra(end));
  return out += chunk_end_;
}

std::string OpenAiWriter::finish(const UsageFacts& usage) {
  const std::string done = "data: [DONE]\n\n";
  return facts_.include_usage ? chunk_start_ + "],\"usage\":" + usage_json(usage) + "}\n\n" + done : done;
}

std::string OpenAiWriter::failed(const ApiError& error) { return "data: " + error_json(error) + "\n\n"; }

// ---- whole ----

void OpenAiWriter::append_message(std::string& out, const WholeChoice& choice) const {
  out += ",\"message\":{\"role\":\"assistant\",";
  const ChoiceDelta text{.reasoning = choice.text.reasoning};
  append_message_text(out, text);
  if (!text.reasoning.empty()) out += ',';
  out += "\"content\":";
  if (choice.text.content.empty() && !choice.text.calls.empty()) {
    out += "null";
  } else {
    append_json_string(out, choice.text.content);
  }
  out += ",\"refusal\":null";
  for (size_t k = 0; k < choice.text.calls.size(); ++k) {
    out += k == 0 ? ",\"tool_calls\":[" : ",";
    append_call(out, choice.index, choice.text.calls[k], /*streamed=*/false);
  }
  out += choice.text.calls.empty() ? "}" : "]}";
}

std::string OpenAiWriter::whole(const std::vector<WholeChoice>& choices, const UsageFacts& usage) {
  std::string out = head_;
  const bool chat = facts_.endpoint == Endpoint::Chat;
  for (size_t i = 0; i < choices.size(); ++i) {
    const WholeChoice& choice = choices[i];
    if (i != 0) out += ',';
    open_choice(out, choice.index);
    std::vector<LogprobEntry> entries = choice.prompt_logprobs;
    entries.insert(entries.end(), choice.text.logprobs.begin(), choice.text.logprobs.end());
    if (chat) {
      append_message(out, choice);
    } else {
      out += ",\"text\":";
      append_json_string(out, choice.prompt_text + choice.text.content);
    }
    out += ",\"logprobs\":";
    int64_t offset = 0;
    if (!facts_.logprobs) {
      out += "null";
    } else if (chat) {
      append_chat_logprobs(out, entries);
    } else {
      append_completion_logprobs(out, entries, !choice.prompt_logprobs.empty(), offset);
    }
    std::string extra = end_extra(choice.end);
    if (facts_.token_ids) {
      extra += ",\"token_ids\":";
      append_ids(extra, choice.text.token_ids);
      extra += ",\"prompt_token_ids\":";
      append_ids(extra, choice.prompt_ids);
    }
    close_choice(out, choice.end.finish_reason, extra);
  }
  out += "],\"usage\":" + usage_json(usage) + '}';
  return out;
}

}  // namespace plumb
