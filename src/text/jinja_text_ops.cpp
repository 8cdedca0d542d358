// Operations on texts that methods and filters share.
#include <algorithm>

#include "text/jinja_interp.h"
#include "text/unicode.h"

namespace plumb::jinja {

std::vector<size_t> TextOps::boundaries(const std::string& text) {
  std::vector<size_t> out;
  out.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); i += utf8::decode(text, i).length) out.push_back(i);
  out.push_back(text.size());
  return out;
}

TaintedText TextOps::strip(const TaintedText& text, const std::optional<Value>& characters, bool left, bool right) {
  const TaintedText* set = characters ? characters->as_text() : nullptr;
  const auto strippable = [&](size_t begin, size_t end) {
    if (set == nullptr) return utf8::is_python_space(utf8::decode(text.bytes, begin).code_point);
    return set->bytes.find(text.bytes.substr(begin, end - begin)) != std::string::npos;
  };
  size_t begin = 0;
  size_t end = text.bytes.size();
  while (left && begin < end) {
    const size_t next = begin + utf8::decode(text.bytes, begin).length;
    if (!strippable(begin, next)) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t before = utf8::previous(text.bytes, end);
    if (!strippable(before, end)) break;
    end = before;
  }
  return plumb::slice(text, begin, end);
}

TaintedText TextOps::replace(const TaintedText& text, const TaintedText& from, const TaintedText& to, int64_t count) {
  TextBuilder out;
  const std::string& bytes = text.bytes;
  size_t done = 0;
  if (from.bytes.empty()) {  // before every character, and at the end
    for (; count != 0; --count) {
      out.append(to);
      if (done >= bytes.size()) break;
      const size_t next = done + utf8::decode(bytes, done).length;
      out.append(text, done, next);
      done = next;
    }
    out.append(text, done, bytes.size());
    return out.take();
  }
  for (; count != 0; --count) {
    const size_t found = bytes.find(from.bytes, done);
    if (found == std::string::npos) break;
    out.append(text, done, found);
    out.append(to);
    done = found + from.bytes.size();
  }
  out.append(text, done, bytes.size());
  return out.take();
}

TaintedText TextOps::map(const TaintedText& text, std::string (*mapped)(char32_t)) {
  TextBuilder out;
  for (size_t i = 0; i < text.bytes.size();) {
    const utf8::Decoded d = utf8::decode(text.bytes, i);
    out.append(mapped(d.code_point), tainted(text, i, i + d.length));
    i += d.length;
  }
  return out.take();
}

TaintedText TextOps::capitalize(const TaintedText& text) {
  if (text.bytes.empty()) return {};
  const size_t first = utf8::decode(text.bytes, 0).length;
  TextBuilder out;
  out.append(map(plumb::slice(text, 0, first), utf8::title));
  out.append(map(plumb::slice(text, first, text.bytes.size()), utf8::lower));
  return out.take();
}

TaintedText TextOps::title(const TaintedText& text) {
  TextBuilder out;
  bool within_word = false;
  for (size_t i = 0; i < text.bytes.size();) {
    const utf8::Decoded d = utf8::decode(text.bytes, i);
    out.append(within_word ? utf8::lower(d.code_point) : utf8::title(d.code_point), tainted(text, i, i + d.length));
    within_word = utf8::is_cased(d.code_point);
    i += d.length;
  }
  return out.take();
}

}  // namespace plumb::jinja
