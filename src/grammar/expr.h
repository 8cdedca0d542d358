// What a constraint says, before it becomes an automaton: every source (JSON schema, regular expression, EBNF, tool
// calls) is written in these few forms, so there is one place where characters become bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plumb::grammar {

inline constexpr char32_t kMaxCodePoint = 0x10ffff;

// A set of code points as sorted, disjoint, inclusive ranges. Surrogates may be in it; they are never written.
class CodePoints {
 public:
  using Range = std::pair<char32_t, char32_t>;
  CodePoints() = default;
  CodePoints(std::initializer_list<Range> ranges);
  static CodePoints all() { return {{0, kMaxCodePoint}}; }

  void add(char32_t low, char32_t high);
  void add(const CodePoints& other);
  CodePoints complement() const;
  CodePoints intersect(const CodePoints& other) const;
  bool contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  friend bool operator<(const CodePoints& a, const CodePoints& b) { return a.ranges_ < b.ranges_; }

 private:
  std::vector<Range> ranges_{};
};

struct Expr {
  enum class Kind : uint8_t {
    Bytes,     // exactly `bytes`; "" is the empty text
    Class,     // one character of `set`, as UTF-8
    JsonChar,  // one character of `set` as it stands inside a JSON string: raw or escaped
    Sequence,  // `parts` in order
    Choice,    // one of `parts`; none at all matches nothing
    Repeat,    // parts[0], `min` to `max` times; max < 0: without end
    Rule,      // rule `index`
    Tag,       // tag `index` of the vocabulary: a token that is a symbol of its own
    Until,     // any bytes and tags of `passed`, up to and with `bytes` spelled out or one of the tags `tags`
    Without,   // any bytes and tags of `passed`, `bytes` spelled out nowhere
  };
  Kind kind = Kind::Bytes;
  int min = 0, max = 0;
  int index = -1;
  std::string bytes{};
  CodePoints set{};
  std::vector<Expr> parts{};
  std::vector<int> tags{}, passed{};
};

Expr text(std::string_view bytes);
Expr chars(CodePoints set);
Expr json_chars(CodePoints set);
Expr sequence(std::vector<Expr> parts);
Expr choice(std::vector<Expr> parts);
Expr repeat(Expr part, int min, int max);
Expr optional(Expr part);
Expr rule(int index);
Expr tag(int index);
// `spelled` may be empty: then only the tags end it.
Expr until(std::string_view spelled, std::vector<int> tags, std::vector<int> passed = {});
Expr without(std::string_view spelled, std::vector<int> passed);

// Rules by index; a body may name any rule, also itself, as long as some byte comes before.
struct Rules {
  std::vector<Expr> bodies{};
  std::vector<std::string> names{};  // for messages

  int add(std::string name, Expr body = {}) {
    names.push_back(std::move(name));
    bodies.push_back(std::move(body));
    return static_cast<int>(bodies.size()) - 1;
  }
  // What is to be written more than once: itself when it is small, else a call of a new rule, or what holds others
  // that hold others would double at each level.
  Expr shared(const std::string& name, Expr body);
};

}  // namespace plumb::grammar
