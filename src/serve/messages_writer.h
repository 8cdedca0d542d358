// Answers of /v1/messages in Anthropic's shape.
#pragma once

#include "serve/answer_writer.h"

namespace plumb {

class MessagesWriter final : public AnswerWriter {
 public:
  explicit MessagesWriter(ResponseFacts facts) : facts_(std::move(facts)) {}

  std::string begin(int index) override;
  std::string delta(int index, const ChoiceDelta& delta, int64_t& text_offset) override;
  std::string end(int index, const ChoiceEnd& end) override;
  std::string finish(const UsageFacts& usage) override;
  std::string failed(const ApiError& error) override;
  std::string whole(const std::vector<WholeChoice>& choices, const UsageFacts& usage) override;

 private:
  enum class Block : uint8_t { None, Thinking, Text, Tool };
  void open(Block block, const std::string& start_json, std::string& out);
  void close(std::string& out);
  void block_delta(std::string_view type, std::string_view member, std::string_view text, std::string& out) const;

  const ResponseFacts facts_;
  Block block_ = Block::None;
  int blocks_ = 0, call_ = -1;
  ChoiceEnd end_{};
};

// {"type":"error","error":{...}}: what Anthropic's clients read.
std::string messages_error_json(const ApiError& error);

}  // namespace plumb
