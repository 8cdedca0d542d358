// How an endpoint writes its answer. One object a request; it sees the deltas of all choices in order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/api_error.h"
#include "serve/choice_text.h"
#include "text/tokenizer.h"

namespace plumb {

enum class Endpoint : uint8_t { Chat, Completion, Messages, Responses, Generate };
enum class ReasoningField : uint8_t { ReasoningContent, Reasoning, Both };

struct ResponseFacts {
  Endpoint endpoint = Endpoint::Chat;
  std::string id{};     // chatcmpl-... or cmpl-...
  std::string model{};  // the served name asked for
  int64_t created = 0;
  std::string fingerprint{};
  ReasoningField reasoning_field = ReasoningField::ReasoningContent;
  bool logprobs = false;
  int top_logprobs = 0;
  bool include_usage = false;  // streamed: every chunk has a usage member
  bool token_ids = false;
  int prompt_tokens = 0;    // of all prompts
  std::string echo_json{};  // members of the request that the answer repeats, as "name":value,...
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

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Streamed: each gives whole SSE events, ready to send, or nothing.
  virtual std::string begin(int index) = 0;
  // Text completions with echo: the prompt's part.
  virtual std::string echo(int, const WholeChoice&) { return {}; }
  // `text_offset` counts characters of completions' text and moves on.
  virtual std::string delta(int index, const ChoiceDelta& delta, int64_t& text_offset) = 0;
  virtual std::string end(int index, const ChoiceEnd& end) = 0;
  virtual std::string finish(const UsageFacts& usage) = 0;  // after all choices have ended
  virtual std::string failed(const ApiError& error) = 0;

  virtual std::string whole(const std::vector<WholeChoice>& choices, const UsageFacts& usage) = 0;
};

std::unique_ptr<AnswerWriter> make_writer(ResponseFacts facts);
// An error before anything was sent, in the endpoint's shape.
HttpResponse refusal(Endpoint endpoint, const ApiError& error);

// Unicode code points; invalid bytes count one each.
int64_t count_characters(std::string_view text);
void append_ids(std::string& out, const std::vector<int32_t>& ids);
// "call_" and what is unique to this call of this answer.
std::string call_id(std::string_view answer_id, int choice, int call);

}  // namespace plumb
