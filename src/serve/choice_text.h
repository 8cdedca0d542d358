// The way of one choice's tokens to text: detokenise, split off reasoning, search the stop strings. Deltas joined are
// the same bytes however the tokens arrive.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_api.h"
#include "serve/markup_parser.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace plumb {

// Ids of the tags that are tokens of the vocabulary; -1: there is no such token.
struct TagIds {
  std::array<int32_t, kMarkupTags> ids{-1, -1, -1, -1, -1, -1, -1, -1};
  int32_t operator[](MarkupTag tag) const { return ids[static_cast<size_t>(tag)]; }
};

struct ChoiceTextOptions {
  const Tokenizer* tokenizer = nullptr;
  TagIds tags{};
  ReasoningStart reasoning = ReasoningStart::Off;
  bool markup = false;     // chat: tags that are tokens are symbols
  bool drop_tags = false;  // a think tag that is a token never shows
  std::shared_ptr<const ToolSchemas> tools{};
  bool one_call = false;  // the text ends with its first call
  std::vector<std::string> stop{};
  bool include_stop = false;
  bool stop_in_reasoning = false;
  bool skip_special = true;
  bool keep_token_ids = false;
  int min_tokens = 0;  // stop strings are not searched before that many tokens
};

struct LogprobEntry {
  TokenLogprob token{};
  std::vector<TokenLogprob> top{};
};

// What may be shown since the last one.
struct ChoiceDelta {
  std::string reasoning{}, content{};
  std::vector<CallDelta> calls{};
  std::vector<LogprobEntry> logprobs{};  // of tokens whose visible content has begun to show
  std::vector<int32_t> token_ids{};

  bool has_text() const { return !reasoning.empty() || !content.empty() || !calls.empty(); }
};

class ChoiceText {
 public:
  explicit ChoiceText(ChoiceTextOptions options);

  // False once a stop string has matched or the one call is whole: later tokens are not to be pushed.
  bool push(const TokenEvent& event, ChoiceDelta& out);
  // The end of the tokens: releases what was held back. `cut`: by a limit.
  void end(bool cut, ChoiceDelta& out);

  // The stop string that ended the text.
  std::optional<std::string> stopped_by() const;
  int tokens() const { return tokens_; }
  int reasoning_tokens() const { return reasoning_tokens_; }
  int calls() const { return markup_.calls(); }
  bool malformed_call() const { return markup_.malformed(); }

 private:
  struct Waiting {
    size_t begin = 0;  // byte of the content stream where the token's text begins
    LogprobEntry entry{};
  };
  std::optional<MarkupTag> tag_of(int32_t id) const;
  bool hidden() const { return markup_.in_reasoning() || markup_.in_call(); }
  void pass(MarkupPiece piece, ChoiceDelta& out);
  void show(std::string_view content, ChoiceDelta& out);
  void release(bool all, ChoiceDelta& out);

  ChoiceTextOptions options_;
  Detokenizer detokenizer_;
  MarkupParser markup_;
  StopMatcher content_stops_;
  StopMatcher reasoning_stops_;
  std::deque<Waiting> waiting_{};
  size_t content_in_ = 0, content_out_ = 0;  // bytes of content before and after the stop matcher
  int tokens_ = 0, reasoning_tokens_ = 0;
};

}  // namespace plumb
