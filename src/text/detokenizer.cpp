#include "text/detokenizer.h"

#include "text/unicode.h"

namespace plumb {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  std::string out;
  size_t at = 0;
  while (at < pending_.size()) {
    const utf8::Decoded d = utf8::decode(pending_, at);
    if (d.truncated) break;  // may still become a character
    utf8::append(out, d.code_point);
    at += d.length;
  }
  pending_.erase(0, at);
  return out;
}

std::string Detokenizer::flush() {
  std::string out = utf8::replace_invalid(pending_);
  pending_.clear();
  return out;
}

}  // namespace plumb
