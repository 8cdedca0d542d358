// Splits a model's text into reasoning and content (model.md 6.4). The generation prompt usually opened <think>
// already.
#pragma once

#include <string>
#include <string_view>

namespace plumb {

class ReasoningParser {
 public:
  enum class Start { Off, InReasoning, MayBegin };  // MayBegin: reasoning only if the text begins with <think>
  enum class Tag { None, Begin, End };

  struct Piece {
    std::string reasoning{}, content{};
  };

  explicit ReasoningParser(Start start);

  // The next text, however it is cut: a suffix that could be the beginning of a tag waits for the rest.
  Piece push(std::string_view text);
  // A tag that came as its own token: certain, unlike one spelled out in text.
  Piece tag(Tag which);
  Piece flush();

  bool in_reasoning() const { return state_ == State::Reasoning; }
  bool undecided() const { return state_ == State::Start; }

 private:
  enum class State { Start, Reasoning, Content };
  Piece advance(bool at_end);

  State state_;
  bool fresh_ = true;  // nothing of the reasoning has been seen: a leading <think> is dropped
  std::string held_{};
};

}  // namespace plumb
