// The methods of Python's str that chat templates call.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "text/jinja_interp.h"
#include "text/unicode.h"

namespace plumb::jinja {
namespace {

using OptionalValues = std::vector<std::optional<Value>>;

const TaintedText* text_argument(Interp& in, const std::optional<Value>& value, std::string_view what, int line) {
  const TaintedText* text = value ? value->as_text() : nullptr;
  if (text == nullptr) in.fail(line, fmt::format("{} takes a string", what));
  return text;
}

int64_t int_argument(Interp& in, const std::optional<Value>& value, int64_t otherwise, int line) {
  if (!value) return otherwise;
  const auto i = value->as_int();
  if (!i) in.fail(line, "expected an integer argument");
  return static_cast<int64_t>(std::clamp<Int>(i.value_or(0), INT64_MIN, INT64_MAX));
}

template <bool kLeft, bool kRight>
Value strip(Interp& in, const TaintedText& self, Args& args) {
  auto bound = in.bind(args, "strip()", {"chars"});
  if (bound[0] && bound[0]->is_none()) bound[0].reset();
  if (bound[0] && !text_argument(in, bound[0], "strip()", args.line)) return {};
  return in.make_text(TextOps::strip(self, bound[0], kLeft, kRight), args.line);
}

// The pieces between runs of white space, from the left or the right, at most `limit` cuts.
std::vector<Span> split_blanks(const std::string& s, int64_t limit, bool from_right) {
  std::vector<Span> words;
  for (size_t i = 0; i < s.size();) {
    const utf8::Decoded d = utf8::decode(s, i);
    const bool blank = utf8::is_python_space(d.code_point);
    if (!blank && !words.empty() && words.back().end == i) {
      words.back().end += d.length;
    } else if (!blank) {
      words.push_back({i, i + d.length});
    }
    i += d.length;
  }
  const auto cuts = static_cast<size_t>(limit);
  if (limit < 0 || words.size() <= cuts) return words;
  // What is left uncut keeps the blanks at its far side.
  if (from_right) {
    const size_t keep = words.size() - cuts;
    std::vector<Span> out{{0, words[keep - 1].end}};
    out.insert(out.end(), words.begin() + static_cast<ptrdiff_t>(keep), words.end());
    return out;
  }
  std::vector<Span> out(words.begin(), words.begin() + static_cast<ptrdiff_t>(cuts));
  out.push_back({words[cuts].begin, s.size()});
  return out;
}

std::vector<Span> split_at(const std::string& s, const std::string& separator, int64_t limit, bool from_right) {
  std::vector<Span> out;
  if (!from_right) {
    size_t done = 0;
    for (; limit != 0; --limit) {
      const size_t found = s.find(separator, done);
      if (found == std::string::npos) break;
      out.push_back({done, found});
      done = found + separator.size();
    }
    out.push_back({done, s.size()});
    return out;
  }
  size_t end = s.size();
  for (; limit != 0 && end >= separator.size(); --limit) {
    const size_t found = s.rfind(separator, end - separator.size());
    if (found == std::string::npos) break;
    out.push_back({found + separator.size(), end});
    end = found;
  }
  out.push_back({0, end});
  std::reverse(out.begin(), out.end());
  return out;
}

template <bool kFromRight>
Value split(Interp& in, const TaintedText& self, Args& args) {
  auto bound = in.bind(args, "split()", {"sep", "maxsplit"});
  const int64_t limit = int_argument(in, bound[1], -1, args.line);
  if (!in.ok()) return {};
  std::vector<Span> spans;
  if (!bound[0] || bound[0]->is_none()) {
    spans = split_blanks(self.bytes, limit, kFromRight);
  } else {
    const TaintedText* separator = text_argument(in, bound[0], "split()", args.line);
    if (separator == nullptr) return {};
    if (separator->bytes.empty()) return in.fail(args.line, "empty separator");
    spans = split_at(self.bytes, separator->bytes, limit, kFromRight);
  }
  std::vector<Value> parts;
  parts.reserve(spans.size());
  for (const Span& span : spans) parts.push_back(in.make_text(plumb::slice(self, span.begin, span.end), args.line));
  return in.list_of(std::move(parts), ListKind::List, args.line);
}

Value splitlines(Interp& in, const TaintedText& self, Args& args) {
  const auto bound = in.bind(args, "splitlines()", {"keepends"});
  const bool keep = bound[0] && truthy(*bound[0]);
  const std::string& s = self.bytes;
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t i = 0; i < s.size();) {
    const utf8::Decoded d = utf8::decode(s, i);
    const char32_t c = d.code_point;
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    size_t next = i + d.length;
    if (ends) {
      if (c == '\r' && next < s.size() && s[next] == '\n') ++next;
      lines.push_back(in.make_text(plumb::slice(self, begin, keep ? next : i), args.line));
      begin = next;
    }
    i = next;
  }
  if (begin < s.size()) lines.push_back(in.make_text(plumb::slice(self, begin, s.size()), args.line));
  return in.list_of(std::move(lines), ListKind::List, args.line);
}

template <bool kStart>
Value starts_or_ends(Interp& in, const TaintedText& self, Args& args) {
  const auto bound = in.bind(args, kStart ? "startswith()" : "endswith()", {"prefix", "start", "end"}, 1);
  if (!in.ok()) return {};
  std::string_view s = self.bytes;
  if (bound[1] || bound[2]) {
    const std::vector<size_t> bounds = TextOps::boundaries(self.bytes);
    const auto size = static_cast<int64_t>(bounds.size() - 1);
    const auto place = [&](const std::optional<Value>& v, int64_t otherwise) {
      int64_t at = v && v->is_none() ? otherwise : int_argument(in, v, otherwise, args.line);
      if (at < 0) at += size;
      return std::clamp<int64_t>(at, 0, size);
    };
    const int64_t begin = place(bound[1], 0);
    const int64_t end = std::max(begin, place(bound[2], size));
    s = s.substr(bounds[static_cast<size_t>(begin)],
                 bounds[static_cast<size_t>(end)] - bounds[static_cast<size_t>(begin)]);
  }
  const List* several = bound[0]->as_list();
  const std::vector<Value> one{*bound[0]};
  for (const Value& candidate : several ? several->items : one) {
    const TaintedText* affix = candidate.as_text();
    if (affix == nullptr) return in.fail(args.line, "startswith() and endswith() take strings");
    if (kStart ? s.starts_with(affix->bytes) : s.ends_with(affix->bytes)) return Value(true);
  }
  return Value(false);
}

Value replace(Interp& in, const TaintedText& self, Args& args) {
  const auto bound = in.bind(args, "replace()", {"old", "new", "count"}, 2);
  if (!in.ok()) return {};
  const TaintedText* from = text_argument(in, bound[0], "replace()", args.line);
  const TaintedText* to = text_argument(in, bound[1], "replace()", args.line);
  const int64_t count = int_argument(in, bound[2], -1, args.line);
  if (!in.ok()) return {};
  const size_t places = from->bytes.empty() ? self.bytes.size() + 1 : self.bytes.size() / from->bytes.size();
  if (places * to->bytes.size() > 8 * in.limits().output_bytes) return in.fail(args.line, "a text grows too long");
  return in.make_text(TextOps::replace(self, *from, *to, count), args.line);
}

template <std::string (*kMap)(char32_t)>
Value mapped(Interp& in, const TaintedText& self, Args& args) {
  in.bind(args, "a case method", {});
  return in.make_text(TextOps::map(self, kMap), args.line);
}

template <TaintedText (*kMap)(const TaintedText&)>
Value whole(Interp& in, const TaintedText& self, Args& args) {
  in.bind(args, "a case method", {});
  return in.make_text(kMap(self), args.line);
}

Value join(Interp& in, const TaintedText& self, Args& args) {
  const auto bound = in.bind(args, "join()", {"iterable"}, 1);
  if (!in.ok()) return {};
  TextBuilder out;
  bool first = true;
  for (const Value& part : in.items_of(*bound[0], args.line)) {
    if (part.as_text() == nullptr)
      return in.fail(args.line, fmt::format("join() expected a str, found {}", part.type_name()));
    if (!first) out.append(self);
    first = false;
    out.append(*part.as_text());
    if (out.size() > in.limits().output_bytes) return in.fail(args.line, "a text grows too long");
  }
  return in.make_text(std::move(out), args.line);
}

enum class Search { Find, RFind, Index, Count };

template <Search kWhat>
Value search(Interp& in, const TaintedText& self, Args& args) {
  const auto bound = in.bind(args, "find()", {"sub", "start", "end"}, 1);
  const TaintedText* part = in.ok() ? text_argument(in, bound[0], "find()", args.line) : nullptr;
  if (part == nullptr) return {};
  if (bound[1] || bound[2]) return in.fail(args.line, "find(), index() and count() with a range are not supported");
  in.charge(static_cast<int64_t>(self.bytes.size() / 64), args.line);
  if (kWhat == Search::Count) {
    if (part->bytes.empty()) return Value(static_cast<Int>(utf8::count(self.bytes) + 1));
    return Value(static_cast<Int>(split_at(self.bytes, part->bytes, -1, false).size() - 1));
  }
  const size_t at = kWhat == Search::RFind ? self.bytes.rfind(part->bytes) : self.bytes.find(part->bytes);
  if (at != std::string::npos) return Value(static_cast<Int>(utf8::count(std::string_view(self.bytes).substr(0, at))));
  return kWhat == Search::Index ? in.fail(args.line, "substring not found") : Value(Int{-1});
}

bool alpha_or_numeric(char32_t c) { return utf8::is_alphabetic(c) || utf8::is_numeric(c); }

// Non-empty and every character is of the kind.
template <bool (*kIs)(char32_t)>
Value all_are(Interp&, const TaintedText& self, Args&) {
  for (size_t i = 0; i < self.bytes.size();) {
    const utf8::Decoded d = utf8::decode(self.bytes, i);
    if (!kIs(d.code_point)) return Value(false);
    i += d.length;
  }
  return Value(!self.bytes.empty());
}

// At least one cased character, and all of them of the kind.
template <bool (*kIs)(char32_t)>
Value cased_are(Interp&, const TaintedText& self, Args&) {
  bool any = false;
  for (size_t i = 0; i < self.bytes.size();) {
    const utf8::Decoded d = utf8::decode(self.bytes, i);
    if (utf8::is_cased(d.code_point)) {
      if (!kIs(d.code_point)) return Value(false);
      any = true;
    }
    i += d.length;
  }
  return Value(any);
}

template <bool kPrefix>
Value remove_affix(Interp& in, const TaintedText& self, Args& args) {
  const auto bound = in.bind(args, "removeprefix()", {"prefix"}, 1);
  const TaintedText* affix = in.ok() ? text_argument(in, bound[0], "removeprefix()", args.line) : nullptr;
  if (affix == nullptr) return {};
  const size_t size = self.bytes.size();
  const size_t drop = affix->bytes.size();
  if (!(kPrefix ? self.bytes.starts_with(affix->bytes) : self.bytes.ends_with(affix->bytes)))
    return in.make_text(self, args.line);
  return in.make_text(plumb::slice(self, kPrefix ? drop : 0, kPrefix ? size : size - drop), args.line);
}

template <bool kFromRight>
Value partition(Interp& in, const TaintedText& self, Args& args) {
  const auto bound = in.bind(args, "partition()", {"sep"}, 1);
  const TaintedText* separator = in.ok() ? text_argument(in, bound[0], "partition()", args.line) : nullptr;
  if (separator == nullptr) return {};
  if (separator->bytes.empty()) return in.fail(args.line, "empty separator");
  const size_t at = kFromRight ? self.bytes.rfind(separator->bytes) : self.bytes.find(separator->bytes);
  std::vector<Value> parts;
  if (at == std::string::npos) {
    parts = {Value::text(""), Value::text("")};
    parts.insert(kFromRight ? parts.end() : parts.begin(), Value::text(self));
  } else {
    const size_t after = at + separator->bytes.size();
    parts = {Value::text(plumb::slice(self, 0, at)), Value::text(plumb::slice(self, at, after)),
             Value::text(plumb::slice(self, after, self.bytes.size()))};
  }
  return in.list_of(std::move(parts), ListKind::Tuple, args.line);
}

Value format(Interp& in, const TaintedText& self, Args& args) { return brace_format(in, self, args); }

}  // namespace

TextMethod find_text_method(std::string_view name) {
  struct Entry {
    std::string_view name;
    TextMethod method;
  };
  static constexpr Entry kMethods[] = {
      {"strip", strip<true, true>},
      {"lstrip", strip<true, false>},
      {"rstrip", strip<false, true>},
      {"split", split<false>},
      {"rsplit", split<true>},
      {"splitlines", splitlines},
      {"startswith", starts_or_ends<true>},
      {"endswith", starts_or_ends<false>},
      {"replace", replace},
      {"upper", mapped<utf8::upper>},
      {"lower", mapped<utf8::lower>},
      {"title", whole<TextOps::title>},
      {"capitalize", whole<TextOps::capitalize>},
      {"join", join},
      {"find", search<Search::Find>},
      {"rfind", search<Search::RFind>},
      {"index", search<Search::Index>},
      {"count", search<Search::Count>},
      {"isspace", all_are<utf8::is_python_space>},
      {"isalpha", all_are<utf8::is_alphabetic>},
      {"isdigit", all_are<utf8::is_decimal>},
      {"isdecimal", all_are<utf8::is_decimal>},
      {"isnumeric", all_are<utf8::is_numeric>},
      {"isalnum", all_are<alpha_or_numeric>},
      {"isupper", cased_are<utf8::is_upper>},
      {"islower", cased_are<utf8::is_lower>},
      {"removeprefix", remove_affix<true>},
      {"removesuffix", remove_affix<false>},
      {"partition", partition<false>},
      {"rpartition", partition<true>},
      {"format", format},
  };
  for (const Entry& entry : kMethods)
    if (entry.name == name) return entry.method;
  return nullptr;
}

}  // namespace plumb::jinja
