// One request's generation, from its token ids to the answer's last byte: submits a sequence for each choice, turns
// tokens into text, writes the answer. Lives on its connection's I/O thread; the engine reaches it through
// Exchange::wake alone.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "serve/answer_writer.h"
#include "serve/context.h"
#include "serve/markup_parser.h"
#include "serve/openai_request.h"

namespace plumb {

struct PromptInput {
  std::vector<int32_t> ids{};
  std::string text{};  // for echo
  ReasoningStart reasoning = ReasoningStart::Off;
};

struct GenerationRequest {
  Endpoint endpoint = Endpoint::Chat;
  CommonFields common{};
  std::vector<PromptInput> prompts{};
  std::shared_ptr<grammar::Grammar> grammar{};
  std::string model{};      // as the answer names it
  std::string rid{};        // /generate: the caller's name for it
  std::string echo_json{};  // /v1/responses: members of the request that the answer repeats
  bool echo = false;
  bool prompt_only = false;
  bool separate_reasoning = true;
  std::shared_ptr<const ToolSchemas> tools{};  // those that may be called
  bool one_call = false;
  bool stop_in_reasoning = false;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(ServeContext& context, const ServedModel& model, std::shared_ptr<Exchange> exchange,
             GenerationRequest request);

  // Checks the lengths, submits, and answers with an error if that fails.
  void start();
  // Ends the request, as an operator asked; nothing when it has ended. On the connection's I/O thread.
  void abort();
  // Whether a caller may mean this request by the name.
  std::string answer_id() const;

 private:
  struct Choice {
    int index = 0;
    size_t prompt = 0;
    std::shared_ptr<TokenStream> stream{};
    ChoiceText text;
    ChoiceDelta pending{};  // streamed: not sent yet
    WholeChoice whole{};    // gathered, when not streamed or when the prompt's logprobs come last
    int64_t text_offset = 0;
    int64_t last_us = 0;   // when its latest tokens were taken
    bool stopped = false;  // a stop string matched; the engine has been told
    bool done = false;
    std::string_view reason{};
  };

  std::optional<ApiError> check_lengths();
  std::optional<ApiError> submit_all();
  GenerateRequest engine_request(const Choice& choice, int number) const;
  Choice make_choice(int index, size_t prompt) const;
  ResponseFacts response_facts() const;
  void begin_answer();
  void on_tokens();
  void take(Choice& choice);
  void time_tokens(Choice& choice);
  void on_token(Choice& choice, const TokenEvent& event);
  void on_end(Choice& choice, const TokenEvent& event);
  void emit(Choice& choice);
  void finish_choice(Choice& choice, const ChoiceEnd& end);
  void finish_prompt(Choice& choice);
  void finish();
  void fail(const ApiError& error);
  void cancel_all();
  UsageFacts usage() const;
  void record(std::string_view reason);
  bool is_chat() const { return request_.endpoint != Endpoint::Completion && request_.endpoint != Endpoint::Generate; }
  bool gathers() const { return !request_.common.stream || late_prompt_; }

  ServeContext& context_;
  const ServedModel& model_;
  std::shared_ptr<Exchange> exchange_;
  GenerationRequest request_;
  const std::unique_ptr<AnswerWriter> writer_;
  const bool late_prompt_;  // echo with logprobs: those of the prompt are known only at the end
  int64_t deadline_us_ = 0;
  std::vector<Choice> choices_{};
  std::vector<TokenEvent> events_{};
  size_t open_choices_ = 0;
  bool over_ = false;
  std::chrono::steady_clock::time_point submitted_{};
  int64_t first_token_us_ = 0, last_token_us_ = 0;
  double first_token_s_ = 0;  // after the request's head
};

}  // namespace plumb
