// Answers of /generate in SGLang's shape: an object a choice, and streamed text that is cumulative.
#pragma once

#include "serve/answer_writer.h"

namespace plumb {

class GenerateWriter final : public AnswerWriter {
 public:
  explicit GenerateWriter(ResponseFacts facts) : facts_(std::move(facts)) {}

  std::string begin(int index) override;
  std::string delta(int index, const ChoiceDelta& delta, int64_t& text_offset) override;
  std::string end(int index, const ChoiceEnd& end) override;
  std::string finish(const UsageFacts& usage) override;
  std::string failed(const ApiError& error) override;
  std::string whole(const std::vector<WholeChoice>& choices, const UsageFacts& usage) override;

 private:
  std::string object(const WholeChoice& choice, const UsageFacts* usage) const;
  WholeChoice& choice_of(int index);

  const ResponseFacts facts_;
  std::vector<WholeChoice> choices_{};
};

}  // namespace plumb
