#include "grammar/regex_syntax.h"

#include <algorithm>
#include <optional>
#include <string>

#include "text/unicode.h"

namespace plumb::grammar {

namespace {

constexpr int kMaxRegexDepth = 100;
constexpr int kMaxCount = 100'000;

CodePoints digits() { return {{'0', '9'}}; }
CodePoints word() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CodePoints ascii_space() { return {{'\t', '\r'}, {' ', ' '}}; }
CodePoints any_space() {
  return {{'\t', '\r'},     {0x1c, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
          {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
}
CodePoints ascii() { return {{0, 0x7f}}; }

// A class under construction: `ascii_only` when its complement must not reach beyond ASCII, where engines differ.
struct Set {
  CodePoints points{};
  bool ascii_only = false;
};

class RegexParser {
 public:
  explicit RegexParser(std::u32string pattern) : text_(std::move(pattern)) {}

  Result<Expr> parse(bool search) {
    const Expr anything = repeat(chars(CodePoints::all()), 0, -1);
    std::vector<Expr> alternatives;
    do {
      bool at_start = false, at_end = false;
      while (take(U'^') || take_escape(U'A')) at_start = true;
      Expr body = parse_sequence(0);
      while (take(U'$') || take_escape(U'Z') || take_escape(U'z')) at_end = true;
      std::vector<Expr> parts;
      if (search && !at_start) parts.push_back(anything);
      parts.push_back(std::move(body));
      if (search && !at_end) parts.push_back(anything);
      alternatives.push_back(sequence(std::move(parts)));
    } while (take(U'|'));
    if (at_ < text_.size()) fail(text_[at_] == U')' ? "a ')' without its '('" : "an anchor in the middle");
    if (!error_.empty()) return Error{Code::Usage, error_, {}, {}};
    return choice(std::move(alternatives));
  }

 private:
  bool more() const { return at_ < text_.size() && error_.empty(); }
  bool take(char32_t c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take_escape(char32_t c) {
    if (!more() || text_[at_] != U'\\' || at_ + 1 >= text_.size() || text_[at_ + 1] != c) return false;
    at_ += 2;
    return true;
  }
  void fail(std::string_view what) {
    if (error_.empty()) error_ = "at character " + std::to_string(at_) + " of the pattern: " + std::string(what);
  }

  Expr parse_choice(int depth) {
    std::vector<Expr> alternatives;
    do {
      alternatives.push_back(parse_sequence(depth));
    } while (take(U'|'));
    return choice(std::move(alternatives));
  }

  Expr parse_sequence(int depth) {
    std::vector<Expr> parts;
    if (depth > kMaxRegexDepth) fail("groups nested over 100 deep");
    while (more() && text_[at_] != U'|' && text_[at_] != U')') {
      if (text_[at_] == U'^' || text_[at_] == U'$' || end_escape()) {
        if (depth > 0) fail("an anchor inside a group, which is not offered");
        break;
      }
      parts.push_back(parse_repeated(depth));
    }
    if (parts.empty()) return text("");
    return sequence(std::move(parts));
  }
  bool end_escape() const {
    return text_[at_] == U'\\' && at_ + 1 < text_.size() && (text_[at_ + 1] == U'Z' || text_[at_ + 1] == U'z');
  }

  Expr parse_repeated(int depth) {
    Expr body = parse_atom(depth);
    while (more()) {
      int min = 0, max = -1;
      if (take(U'+')) {
        min = 1;
      } else if (take(U'?')) {
        max = 1;
      } else if (!take(U'*') && !take_counts(min, max)) {
        break;
      }
      if (take(U'+')) fail("a possessive quantifier, which is not offered");
      take(U'?');  // lazy or not, the same texts match
      body = repeat(std::move(body), min, max);
    }
    return body;
  }

  // {n}, {n,}, {n,m}; anything else is text, as in ECMAScript.
  bool take_counts(int& min, int& max) {
    const size_t start = at_;
    if (!take(U'{')) return false;
    const std::optional<int> low = number();
    std::optional<int> high = low;
    if (low && take(U',')) {
      high = number();
      if (!high) high = -1;
    }
    if (!low || !take(U'}')) {
      at_ = start;
      return false;
    }
    if (*high >= 0 && *high < *low) fail("a repetition whose bounds are the wrong way round");
    min = *low;
    max = *high;
    return true;
  }
  std::optional<int> number() {
    std::optional<int> value;
    while (more() && text_[at_] >= U'0' && text_[at_] <= U'9') {
      value = value.value_or(0) * 10 + static_cast<int>(text_[at_++] - U'0');
      if (*value > kMaxCount) {
        fail("a repetition of over 100000");
        return value;
      }
    }
    return value;
  }

  Expr parse_atom(int depth) {
    const char32_t c = text_[at_++];
    switch (c) {
      case U'(':
        return parse_group(depth);
      case U'[':
        return chars(parse_class());
      case U'.':
        return chars(CodePoints{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement());
      case U'\\':
        return chars(parse_escape(/*in_class=*/false).points);
      case U'*':
      case U'+':
      case U'?':
        --at_;
        fail("a quantifier with nothing before it");
        return text("");
      default:
        return chars({{c, c}});
    }
  }

  Expr parse_group(int depth) {
    if (take(U'?')) {
      const bool named = take(U'P') ? take(U'<')
                                    : (at_ + 1 < text_.size() && text_[at_] == U'<' && text_[at_ + 1] != U'=' &&
                                       text_[at_ + 1] != U'!' && take(U'<'));
      if (named) {
        while (more() && text_[at_] != U'>') ++at_;
        if (!take(U'>')) fail("a group name without its end");
      } else if (!take(U':')) {
        fail("look-around, flags and the like are not offered");
      }
    }
    Expr body = parse_choice(depth + 1);
    if (!take(U')')) fail("a '(' without its ')'");
    return body;
  }

  Set parse_escape(bool in_class) {
    if (!more()) {
      fail("a backslash at the end");
      return {};
    }
    const char32_t c = text_[at_++];
    const auto one = [](char32_t point) { return Set{.points = {{point, point}}}; };
    switch (c) {
      case U'd':
        return {digits(), true};
      case U'D':
        return {digits().complement().intersect(ascii()), true};
      case U'w':
        return {word(), true};
      case U'W':
        return {word().complement().intersect(ascii()), true};
      case U's':
        return {ascii_space(), true};
      case U'S':
        return {any_space().complement(), true};
      case U't':
        return one('\t');
      case U'n':
        return one('\n');
      case U'r':
        return one('\r');
      case U'f':
        return one('\f');
      case U'v':
        return one('\v');
      case U'0':
        return one(0);
      case U'x':
        return one(hex(2));
      case U'u':
        if (take(U'{')) {
          char32_t value = 0;
          while (more() && text_[at_] != U'}' && value <= kMaxCodePoint) value = value * 16 + hex(1);
          if (!take(U'}') || value > kMaxCodePoint) fail("an escape that is no character");
          return one(value);
        }
        return one(hex(4));
      case U'b':
        if (in_class) return one('\b');
        break;
      default:
        break;
    }
    const bool alphanumeric = (c >= U'0' && c <= U'9') || (c >= U'A' && c <= U'Z') || (c >= U'a' && c <= U'z');
    if (alphanumeric) {
      --at_;
      fail("\\" + std::string(1, static_cast<char>(c)) + " is not offered");
    }
    return one(c);
  }

  char32_t hex(int count) {
    char32_t value = 0;
    for (int i = 0; i < count; ++i) {
      const char32_t c = more() ? text_[at_] : U' ';
      const char32_t lower = c | 0x20;
      if (c >= U'0' && c <= U'9') {
        value = value * 16 + (c - U'0');
      } else if (lower >= U'a' && lower <= U'f') {
        value = value * 16 + (lower - U'a') + 10;
      } else {
        fail("an escape without its hexadecimal digits");
        return 0;
      }
      ++at_;
    }
    return value;
  }

  CodePoints parse_class() {
    const bool negated = take(U'^');
    Set all;
    while (more() && text_[at_] != U']') {
      Set first = class_item();
      const bool range = at_ + 1 < text_.size() && text_[at_] == U'-' && text_[at_ + 1] != U']' && single(first);
      if (range) {
        ++at_;
        const Set last = class_item();
        const char32_t low = first.points.ranges()[0].first;
        if (!single(last) || last.points.ranges()[0].first < low) {
          fail("a range whose ends are the wrong way round");
          return {};
        }
        first.points.add(low, last.points.ranges()[0].first);
      }
      all.points.add(first.points);
      all.ascii_only = all.ascii_only || first.ascii_only;
    }
    if (!take(U']')) fail("a '[' without its ']'");
    if (!negated) return all.points;
    const CodePoints rest = all.points.complement();
    return all.ascii_only ? rest.intersect(ascii()) : rest;
  }
  static bool single(const Set& s) {
    return s.points.ranges().size() == 1 && s.points.ranges()[0].first == s.points.ranges()[0].second;
  }
  Set class_item() {
    const char32_t c = text_[at_++];
    if (c == U'\\') return parse_escape(/*in_class=*/true);
    return {.points = {{c, c}}};
  }

  std::u32string text_;
  size_t at_ = 0;
  std::string error_{};
};

// Positions of a regular expression (Glushkov): which characters may come first, last, and after which other.
struct Positions {
  std::vector<CodePoints> sets{};
  std::vector<std::vector<int>> follow{};
  size_t links = 0;
  bool json = false;  // its characters are those of a JSON string
  struct Part {
    std::vector<int> first{}, last{};
    bool nullable = false;
  };
  static constexpr size_t kMaxPositions = 5000, kMaxLinks = 200'000;
  bool full() const { return sets.size() > kMaxPositions || links > kMaxLinks; }

  void link(const std::vector<int>& last, const std::vector<int>& first) {
    for (const int l : last) {
      for (const int f : first) {
        auto& out = follow[static_cast<size_t>(l)];
        if (std::ranges::find(out, f) == out.end()) out.push_back(f), ++links;
      }
    }
  }
  Part join(Part a, const Part& b) {
    link(a.last, b.first);
    if (a.nullable) a.first.insert(a.first.end(), b.first.begin(), b.first.end());
    if (!b.nullable) a.last.clear();
    a.last.insert(a.last.end(), b.last.begin(), b.last.end());
    a.nullable = a.nullable && b.nullable;
    return a;
  }
  Part add(const Expr& e) {
    if (full()) return {.nullable = true};
    switch (e.kind) {
      case Expr::Kind::Class:
      case Expr::Kind::JsonChar: {
        json = json || e.kind == Expr::Kind::JsonChar;
        const int index = static_cast<int>(sets.size());
        sets.push_back(e.set);
        follow.emplace_back();
        return {.first = {index}, .last = {index}};
      }
      case Expr::Kind::Sequence: {
        Part all{.nullable = true};
        for (const Expr& part : e.parts) all = join(std::move(all), add(part));
        return all;
      }
      case Expr::Kind::Choice: {
        Part all;
        for (const Expr& part : e.parts) {
          const Part p = add(part);
          all.first.insert(all.first.end(), p.first.begin(), p.first.end());
          all.last.insert(all.last.end(), p.last.begin(), p.last.end());
          all.nullable = all.nullable || p.nullable;
        }
        return all;
      }
      case Expr::Kind::Repeat: {
        Part all{.nullable = true};
        const int copies = e.max < 0 ? std::max(1, e.min) : e.max;
        for (int i = 0; i < copies && !full(); ++i) {
          Part p = add(e.parts[0]);
          if (e.max < 0 && i + 1 == copies) link(p.last, p.first);
          if (i >= e.min) p.nullable = true;
          all = join(std::move(all), p);
        }
        return all;
      }
      default:
        return {.nullable = true};  // the empty text
    }
  }
};

}  // namespace

Result<Expr> parse_regex(std::string_view pattern, bool search) {
  std::u32string points;
  for (size_t i = 0; i < pattern.size();) {
    const utf8::Decoded d = utf8::decode(pattern, i);
    points += d.code_point;
    i += d.length;
  }
  return RegexParser(std::move(points)).parse(search);
}

Expr inside_json(Expr regex) {
  if (regex.kind == Expr::Kind::Class) regex.kind = Expr::Kind::JsonChar;
  for (Expr& part : regex.parts) part = inside_json(std::move(part));
  return regex;
}

namespace {

// What may follow the last character of a position; the position behind all is before the first character.
struct Follow {
  const std::vector<int>& next;
  bool ends;
};
Follow follow_of(const Positions& positions, const Positions::Part& whole, size_t position) {
  if (position == positions.sets.size()) return {whole.first, whole.nullable};
  const bool ends = std::ranges::find(whole.last, static_cast<int>(position)) != whole.last.end();
  return {positions.follow[position], ends};
}

}  // namespace

Result<Expr> with_length(const Expr& regex, int min, int max, Rules& rules) {
  Positions positions;
  const Positions::Part whole = positions.add(regex);
  const size_t counts = static_cast<size_t>(max < 0 ? min : max) + 1, size = positions.sets.size();
  if (positions.full() || (size + 1) * counts > 50'000) {
    return Error{
        Code::Usage, "the pattern and the length together are too large", {}, {"one of the two", "a smaller length"}};
  }
  // Rule (position, count): what may follow when `count` characters have been written, the last one at `position`.
  const int first_rule = static_cast<int>(rules.bodies.size());
  const auto rule_of = [&](size_t position, size_t count) {
    return first_rule + static_cast<int>(position * counts + std::min(count, counts - 1));
  };
  for (size_t i = 0; i < (size + 1) * counts; ++i) rules.add("pattern");
  for (size_t position = 0; position <= size; ++position) {
    const Follow follow = follow_of(positions, whole, position);
    for (size_t count = 0; count < counts; ++count) {
      std::vector<Expr> ways;
      if (follow.ends && count >= static_cast<size_t>(min)) ways.push_back(text(""));
      for (const int p : follow.next) {
        if (max >= 0 && count == static_cast<size_t>(max)) break;
        const auto at = static_cast<size_t>(p);
        Expr one = positions.json ? json_chars(positions.sets[at]) : chars(positions.sets[at]);
        ways.push_back(sequence({std::move(one), rule(rule_of(at, count + 1))}));
      }
      rules.bodies[static_cast<size_t>(rule_of(position, count))] = choice(std::move(ways));
    }
  }
  return rule(rule_of(size, 0));
}

}  // namespace plumb::grammar
