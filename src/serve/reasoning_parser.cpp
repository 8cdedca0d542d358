#include "serve/reasoning_parser.h"

#include <algorithm>

namespace plumb {

namespace {

constexpr std::string_view kBegin = "<think>";
constexpr std::string_view kEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>";  // ends reasoning by itself, and stays in the content

// Bytes at the end of `text` that could be the beginning of `tag`.
size_t open_suffix(std::string_view text, std::string_view tag) {
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size)
    if (text.ends_with(tag.substr(0, size))) return size;
  return 0;
}

}  // namespace

ReasoningParser::ReasoningParser(Start start)
    : state_(start == Start::Off           ? State::Content
             : start == Start::InReasoning ? State::Reasoning
                                           : State::Start) {}

ReasoningParser::Piece ReasoningParser::push(std::string_view text) {
  if (state_ == State::Content) return {.content = std::string(text)};
  held_ += text;
  return advance(/*at_end=*/false);
}

ReasoningParser::Piece ReasoningParser::advance(bool at_end) {
  if (fresh_ || state_ == State::Start) {
    const std::string_view head = std::string_view(held_).substr(0, kBegin.size());
    if (!at_end && head.size() < kBegin.size() && kBegin.starts_with(head)) return {};
    if (head == kBegin) {
      held_.erase(0, kBegin.size());
      state_ = State::Reasoning;
    }
    fresh_ = false;
    if (state_ == State::Start) state_ = State::Content;
  }
  Piece piece;
  if (state_ == State::Reasoning) {
    const size_t end = held_.find(kEnd);
    const size_t call = held_.find(kCall);
    const size_t first = std::min(end, call);
    if (first == std::string::npos) {
      const size_t keep = at_end ? 0 : std::max(open_suffix(held_, kEnd), open_suffix(held_, kCall));
      piece.reasoning = held_.substr(0, held_.size() - keep);
      held_.erase(0, held_.size() - keep);
      return piece;
    }
    piece.reasoning = held_.substr(0, first);
    held_.erase(0, first == end ? first + kEnd.size() : first);
    state_ = State::Content;
  }
  piece.content.swap(held_);
  return piece;
}

ReasoningParser::Piece ReasoningParser::tag(Tag which) {
  const bool opens = which == Tag::Begin && state_ == State::Start && held_.empty();
  Piece piece{};
  if (!opens) piece = advance(/*at_end=*/true);
  if (opens) state_ = State::Reasoning;
  fresh_ = false;
  if (which == Tag::End) state_ = State::Content;
  return piece;
}

ReasoningParser::Piece ReasoningParser::flush() { return advance(/*at_end=*/true); }

}  // namespace plumb
