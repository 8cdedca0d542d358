// Token ids to text, a token at a time, for streams: never half a character, and all pieces joined equal
// Tokenizer::decode of all ids.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace plumb {

class Detokenizer {
 public:
  // The tokenizer must outlive it.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that this token completes; empty while a character is still open.
  std::string push(int32_t id);
  // The end of the stream: U+FFFD for an open character, else nothing.
  std::string flush();
  // Bytes that wait for the rest of their character: at most three.
  const std::string& pending() const { return pending_; }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_{};
};

}  // namespace plumb
