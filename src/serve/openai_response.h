// Answers of OpenAI's chat and text completions, written as text: the parts that never change within a stream are built
// once, so a token costs one escape and a few appends.
#pragma once

#include "serve/answer_writer.h"

namespace plumb {

class OpenAiWriter final : public AnswerWriter {
 public:
  explicit OpenAiWriter(ResponseFacts facts);

  std::string begin(int index) override;  // chat: the role, once
  std::string echo(int index, const WholeChoice& prompt) override;
  std::string delta(int index, const ChoiceDelta& delta, int64_t& text_offset) override;
  std::string end(int index, const ChoiceEnd& end) override;
  std::string finish(const UsageFacts& usage) override;
  std::string failed(const ApiError& error) override;
  std::string whole(const std::vector<WholeChoice>& choices, const UsageFacts& usage) override;

 private:
  void open_choice(std::string& out, int index) const;
  void close_choice(std::string& out, std::string_view finish_reason, std::string_view extra) const;
  std::string ids_of(const ChoiceDelta& delta) const;
  void append_message(std::string& out, const WholeChoice& choice) const;
  void append_text_delta(std::string& out, int index, const ChoiceDelta& delta, int64_t& text_offset) const;
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

}  // namespace plumb
