// Answers in OpenAI's shape, written as text: the parts that never change within a stream are built once, so a token
// costs one escape and a few appends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/choice_text.h"
#include "text/tokenizer.h"

namespace plumb {

enum class Endpoint : uint8_t { Chat, Completion };
enum class ReasoningField : uint8_t { ReasoningContent, Reasoning, Both };

struct ResponseFacts {
  Endpoint endpoint = Endpoint::Chat;
  std::string id{};     // chatcmpl-... or cmpl-...
  std::string model{};  // the served name asked for
  int64_t created = 0;
  std::string fingerprint{};
  ReasoningField reasoning_field = ReasoningField::ReasoningContent;
  bool inline_reasoning = false;  // separate_reasoning: false
  bool logprobs = false;
  int top_logprobs = 0;
  bool include_usage = false;  // streamed: every chunk has a usage member
  bool token_ids = false;
  const Tokenizer* tokenizer = nullptr;
};

struct UsageFacts {
  int prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, reasoning_tokens = 0;
  int accepted_prediction_tokens = 0, rejected_prediction_tokens = 0;
};

struct ChoiceEnd {
  std::string_view finish_reason = "stop";
  bool malformed_call = false;            // markup of a call that was none: shown as content
  std::string stop_reason_json = "null";  // the stop string or id that ended the text
};

// One choice of a whole answer. For completions with echo, content begins with the prompt.
struct WholeChoice {
  int index = 0;
  ChoiceDelta text{};
  ChoiceEnd end{};
  std::string prompt_text{};                    // echo
  std::vector<LogprobEntry> prompt_logprobs{};  // echo: the first has no logprob
  std::vector<int32_t> prompt_ids{};            // with token_ids or echo
};

class ResponseWriter {
 public:
  explicit ResponseWriter(ResponseFacts facts);

  // Each gives whole SSE events, ready to send.
  std::string first_chunk(int index) const;  // chat: the role, once
  std::string echo_chunk(int index, const WholeChoice& prompt) const;
  // `text_offset` counts characters of completions' text and moves on.
  std::string delta_chunk(int index, const ChoiceDelta& delta, int64_t& text_offset) const;
  std::string final_chunk(int index, const ChoiceEnd& end) const;
  std::string usage_chunk(const UsageFacts& usage) const;
  static std::string error_event(const std::string& error_json) { return "data: " + error_json + "\n\n"; }
  static std::string done_event() { return "data: [DONE]\n\n"; }

  std::string whole(const std::vector<WholeChoice>& choices, const UsageFacts& usage) const;

 private:
  void open_choice(std::string& out, int index) const;
  void close_choice(std::string& out, std::string_view finish_reason, std::string_view extra) const;
  void append_call(std::string& out, int choice, const CallDelta& call, bool streamed) const;
  static std::string end_extra(const ChoiceEnd& end);
  void append_message_text(std::string& out, const ChoiceDelta& delta) const;
  void append_chat_logprobs(std::string& out, const std::vector<LogprobEntry>& entries) const;
  void append_completion_logprobs(std::string& out, const std::vector<LogprobEntry>& entries, bool first_is_null,
                                  int64_t& text_offset) const;
  void append_token(std::string& out, const TokenLogprob& token) const;
  std::string token_key(int32_t id) const;

  ResponseFacts facts_;
  std::string head_{};         // {"id":...,"choices":[
  std::string chunk_start_{};  // "data: " + head_
  std::string chunk_end_{};    // ] , usage, }
};

std::string usage_json(const UsageFacts& usage);
// Unicode code points; invalid bytes count one each.
int64_t count_characters(std::string_view text);
void append_ids(std::string& out, const std::vector<int32_t>& ids);

}  // namespace plumb
