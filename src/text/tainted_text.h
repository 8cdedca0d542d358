// Text that remembers which of its bytes came from someone who can't be trusted (api.md 66). The mark follows the bytes
// through every operation of a template, so that the encoder can refuse control tokens exactly there.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/span.h"

namespace plumb {

struct TaintedText {
  std::string bytes{};
  std::vector<Span> taint{};  // sorted, disjoint, not adjacent
};

class TextBuilder {
 public:
  void append(std::string_view bytes, bool tainted = false) {
    if (tainted && !bytes.empty()) mark(text_.bytes.size(), text_.bytes.size() + bytes.size());
    text_.bytes += bytes;
  }
  void append(const TaintedText& text) { append(text, 0, text.bytes.size()); }
  void append(const TaintedText& text, size_t begin, size_t end);
  size_t size() const { return text_.bytes.size(); }
  TaintedText take() { return std::move(text_); }

 private:
  void mark(size_t begin, size_t end);
  TaintedText text_{};
};

TaintedText slice(const TaintedText& text, size_t begin, size_t end);
inline bool tainted(const TaintedText& text, size_t begin, size_t end) { return touches(text.taint, begin, end); }

}  // namespace plumb
