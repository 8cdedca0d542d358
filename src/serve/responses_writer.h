// Answers of /v1/responses: output items, each with its own events.
#pragma once

#include "serve/answer_writer.h"

namespace plumb {

class ResponsesWriter final : public AnswerWriter {
 public:
  explicit ResponsesWriter(ResponseFacts facts) : facts_(std::move(facts)) {}

  std::string begin(int index) override;
  std::string delta(int index, const ChoiceDelta& delta, int64_t& text_offset) override;
  std::string end(int index, const ChoiceEnd& end) override;
  std::string finish(const UsageFacts& usage) override;
  std::string failed(const ApiError& error) override;
  std::string whole(const std::vector<WholeChoice>& choices, const UsageFacts& usage) override;

 private:
  enum class Kind : uint8_t { None, Reasoning, Message, Call };
  struct Item {
    Kind kind = Kind::None;
    std::string id{}, name{}, call_id{}, text{};
  };
  void open(Kind kind, const CallDelta* call, std::string& out);
  void close(std::string_view status, std::string& out);
  void add_text(std::string_view text, std::string& out);
  std::string event(std::string_view type, const std::string& members);
  std::string item_json(const Item& item, std::string_view status, bool with_text) const;
  std::string response_json(std::string_view status, const std::string& output, const UsageFacts* usage,
                            const ApiError* error) const;
  std::string place() const;

  const ResponseFacts facts_;
  Item item_{};
  int items_ = 0;
  std::string output_{};  // the items so far, as a list without its brackets
  bool cut_ = false;
  int sequence_ = 0;
};

}  // namespace plumb
