// Splits a model's text into reasoning, content and calls (model.md 6.4): one grammar over bytes and tags.
//
// A tag that came as its own token is certain. Spelled out in ordinary tokens it counts too, but not inside an
// argument's value, where a user's text may speak of tags. However the text is cut, the pieces joined are the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/tool_schema.h"

namespace plumb {

enum class ReasoningStart : uint8_t { Off, InReasoning, MayBegin };  // MayBegin: only if the text begins with <think>

enum class MarkupTag : uint8_t { Think, EndThink, Call, EndCall, Key, EndKey, Value, EndValue };
inline constexpr int kMarkupTags = 8;
std::string_view tag_text(MarkupTag tag);

// A part of a call: its beginning with the name, or more of its arguments' JSON.
struct CallDelta {
  int index = 0;
  std::string name{};  // once and whole
  std::string arguments{};
};

struct MarkupPiece {
  std::string reasoning{}, content{};
  std::vector<CallDelta> calls{};
};

class MarkupParser {
 public:
  struct Options {
    ReasoningStart start = ReasoningStart::Off;
    bool drop_think_tags = false;  // those that are tokens never show
    // The tools that may be called; null: calls are text.
    std::shared_ptr<const ToolSchemas> tools{};
    bool values_end_by_text = false;  // the vocabulary has no token for </arg_value>
  };
  explicit MarkupParser(Options options);

  MarkupPiece push(std::string_view text);
  MarkupPiece tag(MarkupTag which);
  // The end of the text. `cut`: by a limit, so a call in the middle is left as it is; else what is no whole call shows
  // as content.
  MarkupPiece flush(bool cut);

  bool in_reasoning() const { return state_ == State::Reasoning; }
  bool in_call() const { return state_ >= State::Name; }
  int calls() const { return next_index_; }
  // A call that had been announced turned out ill-formed: its arguments were closed, what followed is content.
  bool malformed() const { return malformed_; }

 private:
  enum class State : uint8_t { Start, Reasoning, Content, Name, Between, Key, AfterKey, Value };
  struct FoundTag {
    size_t at = std::string::npos;  // npos: there is none
    MarkupTag which{};
    size_t open_end = 0;  // bytes at the end that may begin one
  };
  void process(bool at_end, MarkupPiece& out);
  bool begin_text(bool at_end);
  FoundTag first_tag() const;
  bool relevant(MarkupTag which) const;
  void take_text(std::string_view text, MarkupPiece& out);
  void take_tag(MarkupTag which, bool token, MarkupPiece& out);
  void take_tag_of_call(MarkupTag which, MarkupPiece& out);
  void begin_call();
  void announce(MarkupPiece& out);
  void begin_value(MarkupPiece& out);
  void end_value(MarkupPiece& out);
  void end_call(MarkupPiece& out);
  void give_up(MarkupPiece& out);
  void add_arguments(std::string_view json, MarkupPiece& out);

  const Options options_;
  State state_;
  bool fresh_ = true;   // nothing of the reasoning has been seen: a leading <think> is dropped
  std::string held_{};  // a suffix that may be the beginning of a tag
  std::string raw_{};   // of the call: what has not been sent as a part of it yet
  std::string name_{}, key_{}, value_{};
  bool announced_ = false, text_value_ = false;
  std::vector<std::string> keys_{};  // of this call
  int next_index_ = 0;
  bool malformed_ = false;
};

}  // namespace plumb
