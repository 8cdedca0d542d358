#include "grammar/ebnf.h"

#include <algorithm>
#include <map>
#include <string>

#include "grammar/regex_syntax.h"
#include "text/unicode.h"

namespace plumb::grammar {

namespace {

constexpr int kMaxGroupDepth = 100;

class EbnfParser {
 public:
  EbnfParser(std::string_view source, Rules& rules) : source_(source), rules_(rules) {}

  Result<int> parse() {
    int root = -1;
    for (skip_space(); more(); skip_space()) {
      const std::string name = take_name();
      skip_space();
      if (name.empty() || !source_.substr(at_).starts_with("::=")) {
        fail("expected a rule such as  name ::= \"text\"");
        break;
      }
      at_ += 3;
      const int index = rule_named(name);
      if (defined_[name]) fail("the rule '" + name + "' is defined twice");
      defined_[name] = true;
      Expr body = parse_choice(0);
      rules_.bodies[static_cast<size_t>(index)] = std::move(body);
      if (root < 0 || name == "root") root = index;
    }
    if (root < 0) fail("there is no rule");
    for (const auto& [name, index] : names_) {
      if (!defined_[name]) fail("the rule '" + name + "' is used and not defined");
    }
    if (!error_.empty()) return Error{Code::Usage, error_, {}, {}};
    return root;
  }

 private:
  bool more() const { return at_ < source_.size() && error_.empty(); }
  void fail(std::string_view what) {
    if (!error_.empty()) return;
    const auto line = 1 + std::ranges::count(source_.substr(0, at_), '\n');
    error_ = "line " + std::to_string(line) + " of the grammar: " + std::string(what);
  }
  void skip_space() {
    while (at_ < source_.size()) {
      if (source_[at_] == '#') {
        while (at_ < source_.size() && source_[at_] != '\n') ++at_;
      } else if (std::string_view(" \t\r\n").find(source_[at_]) != std::string_view::npos) {
        ++at_;
      } else {
        return;
      }
    }
  }
  static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  }
  std::string take_name() {
    const size_t start = at_;
    while (at_ < source_.size() && name_char(source_[at_])) ++at_;
    return std::string(source_.substr(start, at_ - start));
  }
  bool take(char c) {
    if (!more() || source_[at_] != c) return false;
    ++at_;
    return true;
  }
  int rule_named(const std::string& name) {
    const auto [entry, fresh] = names_.try_emplace(name, -1);
    if (fresh) entry->second = rules_.add(name);
    return entry->second;
  }

  Expr parse_choice(int depth) {
    if (depth > kMaxGroupDepth) fail("groups nested over 100 deep");
    std::vector<Expr> alternatives;
    do {
      std::vector<Expr> parts;
      for (skip_space(); more() && source_[at_] != '|' && source_[at_] != ')' && !at_rule(); skip_space()) {
        parts.push_back(parse_repeated(depth));
      }
      alternatives.push_back(parts.empty() ? text("") : sequence(std::move(parts)));
    } while (take('|'));
    return choice(std::move(alternatives));
  }

  // The next rule's head: a name and "::=".
  bool at_rule() {
    const size_t start = at_;
    const bool named = !take_name().empty();
    skip_space();
    const bool found = named && source_.substr(at_).starts_with("::=");
    at_ = start;
    return found;
  }

  Expr parse_repeated(int depth) {
    Expr body = parse_item(depth);
    while (more()) {
      if (take('*')) {
        body = repeat(std::move(body), 0, -1);
      } else if (take('+')) {
        body = repeat(std::move(body), 1, -1);
      } else if (take('?')) {
        body = optional(std::move(body));
      } else if (take('{')) {
        const int min = number();
        int max = min;
        if (take(',')) max = more() && source_[at_] != '}' ? number() : -1;
        if (!take('}') || (max >= 0 && max < min)) fail("a repetition is {n}, {n,} or {n,m}");
        body = repeat(std::move(body), min, max);
      } else {
        break;
      }
    }
    return body;
  }
  int number() {
    int value = 0;
    bool any = false;
    for (; more() && source_[at_] >= '0' && source_[at_] <= '9'; ++at_, any = true) {
      value = std::min(value * 10 + (source_[at_] - '0'), 1'000'000);
    }
    if (!any) fail("a repetition without its number");
    if (value > 100'000) fail("a repetition of over 100000");
    return value;
  }

  Expr parse_item(int depth) {
    const char c = source_[at_];
    if (c == '"' || c == '\'') return text(take_string(c));
    if (c == '[') return take_class();
    if (take('.')) return chars(CodePoints::all());
    if (take('(')) {
      Expr body = parse_choice(depth + 1);
      if (!take(')')) fail("a '(' without its ')'");
      return body;
    }
    const std::string name = take_name();
    if (name.empty()) fail("'" + std::string(1, c) + "' begins nothing known");
    return name.empty() ? text("") : rule(rule_named(name));
  }

  std::string take_string(char quote) {
    std::string out;
    for (++at_; more() && source_[at_] != quote;) {
      if (source_[at_] == '\n') break;
      if (source_[at_] != '\\') {
        out += source_[at_++];
        continue;
      }
      // One escape is a pattern of one character.
      size_t size = at_ + 1 < source_.size() && source_[at_ + 1] == 'x' ? 4 : 2;
      if (at_ + 1 < source_.size() && source_[at_ + 1] == 'u') size = 6;
      const Result<Expr> one = parse_regex(source_.substr(at_, size), false);
      if (!one || one->kind != Expr::Kind::Class || one->set.ranges().size() != 1 ||
          one->set.ranges()[0].first != one->set.ranges()[0].second) {
        fail("an unknown escape in a string");
        return out;
      }
      utf8::append(out, one->set.ranges()[0].first);
      at_ += size;
    }
    if (!take(quote)) fail("a string without its closing quote");
    return out;
  }

  Expr take_class() {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != ']' && source_[end] != '\n') end += source_[end] == '\\' ? 2 : 1;
    end = std::min(end + 1, source_.size());
    Result<Expr> set = parse_regex(source_.substr(at_, end - at_), false);
    if (!set) {
      fail(set.error().what);
      return text("");
    }
    at_ = end;
    return *std::move(set);
  }

  std::string_view source_;
  Rules& rules_;
  size_t at_ = 0;
  std::map<std::string, int> names_{};
  std::map<std::string, bool> defined_{};
  std::string error_{};
};

}  // namespace

Result<int> parse_ebnf(std::string_view source, Rules& rules) { return EbnfParser(source, rules).parse(); }

}  // namespace plumb::grammar
