// The way of one choice's tokens to text: detokenise, split off reasoning, search the stop strings. Deltas joined are
// the same bytes however the tokens arrive.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_api.h"
#include "serve/reasoning_parser.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace plumb {

struct ThinkTags {
  int32_t begin_id = -1, end_id = -1;  // -1: the vocabulary has no such token
};

struct ChoiceTextOptions {
  const Tokenizer* tokenizer = nullptr;
  ThinkTags tags{};
  ReasoningParser::Start reasoning = ReasoningParser::Start::Off;
  bool drop_tags = false;  // chat: a think tag that is a token of its own never shows
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
  std::vector<LogprobEntry> logprobs{};  // of tokens whose visible content has begun to show
  std::vector<int32_t> token_ids{};

  bool has_text() const { return !reasoning.empty() || !content.empty(); }
};

class ChoiceText {
 public:
  explicit ChoiceText(ChoiceTextOptions options);

  // False once a stop string has matched: later tokens are not to be pushed.
  bool push(const TokenEvent& event, ChoiceDelta& out);
  // The end of the tokens, for whatever reason: releases what was held back.
  void end(ChoiceDelta& out);

  // The stop string that ended the text.
  std::optional<std::string> stopped_by() const;
  int tokens() const { return tokens_; }
  int reasoning_tokens() const { return reasoning_tokens_; }

 private:
  struct Waiting {
    size_t begin = 0;  // byte of the content stream where the token's text begins
    LogprobEntry entry{};
  };
  ReasoningParser::Tag tag_of(int32_t id) const;
  void pass(const ReasoningParser::Piece& piece, ChoiceDelta& out);
  void show(std::string_view content, ChoiceDelta& out);
  void release(bool all, ChoiceDelta& out);

  ChoiceTextOptions options_;
  Detokenizer detokenizer_;
  ReasoningParser reasoning_;
  StopMatcher content_stops_;
  StopMatcher reasoning_stops_;
  std::deque<Waiting> waiting_{};
  size_t content_in_ = 0, content_out_ = 0;  // bytes of content before and after the stop matcher
  int tokens_ = 0, reasoning_tokens_ = 0;
};

}  // namespace plumb
