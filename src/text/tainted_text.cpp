#include "text/tainted_text.h"

#include <algorithm>

namespace plumb {

void TextBuilder::mark(size_t begin, size_t end) {
  if (!text_.taint.empty() && text_.taint.back().end == begin) {
    text_.taint.back().end = end;
  } else {
    text_.taint.push_back({begin, end});
  }
}

void TextBuilder::append(const TaintedText& text, size_t begin, size_t end) {
  if (begin >= end) return;
  const size_t base = text_.bytes.size();
  auto it = std::partition_point(text.taint.begin(), text.taint.end(), [&](const Span& s) { return s.end <= begin; });
  for (; it != text.taint.end() && it->begin < end; ++it)
    mark(base + std::max(it->begin, begin) - begin, base + std::min(it->end, end) - begin);
  text_.bytes.append(text.bytes, begin, end - begin);
}

TaintedText slice(const TaintedText& text, size_t begin, size_t end) {
  TextBuilder out;
  out.append(text, begin, end);
  return out.take();
}

}  // namespace plumb
