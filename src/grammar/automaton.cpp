#include "grammar/automaton.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_set>

namespace plumb::grammar {

namespace {

using Kind = Expr::Kind;

int utf8_length(char32_t c) { return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4; }

int utf8_byte(char32_t c, int length, int at) {
  static constexpr int kLead[] = {0, 0, 0xc0, 0xe0, 0xf0};
  const int shift = 6 * (length - 1 - at);
  if (at == 0) return length == 1 ? static_cast<int>(c) : kLead[length] | static_cast<int>(c >> shift);
  return 0x80 | static_cast<int>((c >> shift) & 0x3f);
}

class Builder {
 public:
  Builder(const Rules& rules, int max_states) : rules_(rules), max_states_(static_cast<size_t>(max_states)) {}

  Result<Automaton> build(int root) {
    for (size_t r = 0; r < rules_.bodies.size(); ++r) open_rule();
    for (size_t r = 0; r < rules_.bodies.size(); ++r) fill(static_cast<int32_t>(r), rules_.bodies[r]);
    // Hoisted bodies may hoist others.
    for (size_t i = 0; i < hoisted_.size() && !full(); ++i) {
      const auto [rule, body] = hoisted_[i];
      fill(rule, *body);
    }
    if (full()) {
      return Error{Code::Usage,
                   "the constraint is too large",
                   "it would take over " + std::to_string(max_states_) + " states",
                   {"smaller counts", "fewer parts"}};
    }
    out_.root = root;
    return std::move(out_);
  }

 private:
  bool full() const { return out_.states.size() > max_states_; }
  int32_t state() {
    out_.states.emplace_back();
    return static_cast<int32_t>(out_.states.size()) - 1;
  }
  Automaton::State& at(int32_t state) { return out_.states[static_cast<size_t>(state)]; }
  void edge(int32_t from, int low, int high, int32_t to) { at(from).edges.push_back({low, high, to}); }
  void jump(int32_t from, int32_t to) { at(from).jumps.push_back(to); }
  int32_t call(int32_t from, int32_t rule) {
    const int32_t to = state();
    at(from).calls.push_back({rule, to});
    return to;
  }
  int32_t open_rule() {
    out_.rule_start.push_back(state());
    out_.rule_end.push_back(state());
    return static_cast<int32_t>(out_.rule_start.size()) - 1;
  }
  void fill(int32_t rule, const Expr& body) {
    jump(emit(body, out_.rule_start[static_cast<size_t>(rule)]), out_.rule_end[static_cast<size_t>(rule)]);
  }

  // The state after `expr`, begun in `from`. No edge leads back into `from`.
  int32_t emit(const Expr& expr, int32_t from) {
    if (full()) return from;
    switch (expr.kind) {
      case Kind::Bytes:
        return emit_bytes(expr.bytes, from);
      case Kind::Class:
      case Kind::JsonChar:
        return emit_class(expr, from);
      case Kind::Sequence:
        for (const Expr& part : expr.parts) from = emit(part, from);
        return from;
      case Kind::Choice: {
        const int32_t end = state();
        for (const Expr& part : expr.parts) jump(emit(part, from), end);
        return end;
      }
      case Kind::Repeat:
        return emit_repeat(expr, from);
      case Kind::Rule:
        return call(from, expr.index);
      case Kind::Tag: {
        const int32_t end = state();
        edge(from, kFirstTag + expr.index, kFirstTag + expr.index, end);
        return end;
      }
      case Kind::Until:
      case Kind::Without:
        return emit_search(expr, from);
    }
    return from;
  }

  int32_t emit_bytes(const std::string& bytes, int32_t from) {
    for (const char c : bytes) {
      const int32_t to = state();
      edge(from, static_cast<unsigned char>(c), static_cast<unsigned char>(c), to);
      from = to;
    }
    return from;
  }

  // ASCII directly; what takes several bytes is a rule shared by all uses of the same class.
  int32_t emit_class(const Expr& expr, int32_t from) {
    const bool json = expr.kind == Kind::JsonChar;
    CodePoints direct = expr.set.intersect({{0, 0x7f}});
    if (json) direct = direct.intersect({{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7f}});
    const int32_t to = state();
    for (const auto& [low, high] : direct.ranges()) edge(from, static_cast<int>(low), static_cast<int>(high), to);
    const int32_t rest = rest_of_class(expr.set, json);
    if (rest >= 0) at(from).calls.push_back({rest, to});
    return to;
  }

  int32_t rest_of_class(const CodePoints& set, bool json) {
    const CodePoints wide = set.intersect({{0x80, 0xd7ff}, {0xe000, kMaxCodePoint}});
    const CodePoints escaped = json ? set.intersect({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}) : CodePoints{};
    if (wide.empty() && escaped.empty()) return -1;
    const auto [entry, fresh] = classes_.try_emplace({json, set}, -1);
    if (!fresh) return entry->second;
    const int32_t rule = open_rule();
    entry->second = rule;
    const int32_t start = out_.rule_start[static_cast<size_t>(rule)], end = out_.rule_end[static_cast<size_t>(rule)];
    for (const auto& [low, high] : wide.ranges()) emit_utf8(start, end, low, high);
    if (json) emit_escapes(start, end, escaped, set.complement().empty());
    return rule;
  }

  void emit_utf8(int32_t from, int32_t to, char32_t low, char32_t high) {
    for (const char32_t last : {char32_t{0x7f}, char32_t{0x7ff}, char32_t{0xffff}}) {
      if (low <= last && last < high) {
        emit_utf8(from, to, low, last);
        return emit_utf8(from, to, last + 1, high);
      }
    }
    const int length = utf8_length(low);
    for (int tail = 1; tail < length; ++tail) {  // all last `tail` bytes must be free, or all the same
      const char32_t mask = (char32_t{1} << (6 * tail)) - 1;
      if ((low & ~mask) == (high & ~mask)) continue;
      const bool ragged_low = (low & mask) != 0, ragged_high = (high & mask) != mask;
      if (!ragged_low && !ragged_high) continue;
      const char32_t cut = ragged_low ? (low | mask) : (high & ~mask) - 1;
      emit_utf8(from, to, low, cut);
      return emit_utf8(from, to, cut + 1, high);
    }
    for (int i = 0; i < length; ++i) {
      const int32_t next = i + 1 == length ? to : state();
      edge(from, utf8_byte(low, length, i), utf8_byte(high, length, i), next);
      from = next;
    }
  }

  // `free`: every character may be there, so any escape may, too; a lone surrogate never.
  void emit_escapes(int32_t start, int32_t end, const CodePoints& escaped, bool free) {
    if (escaped.empty()) return;
    const int32_t slash = state();
    edge(start, '\\', '\\', slash);
    static constexpr std::pair<char, char> kShort[] = {{'"', '"'},  {'\\', '\\'}, {'b', '\b'}, {'f', '\f'},
                                                       {'n', '\n'}, {'r', '\r'},  {'t', '\t'}};
    for (const auto& [letter, c] : kShort) {
      if (escaped.contains(static_cast<unsigned char>(c))) edge(slash, letter, letter, end);
    }
    const auto hex = [&](int32_t from, std::initializer_list<std::pair<char, char>> ranges, int32_t to) {
      for (const auto& [low, high] : ranges) {
        edge(from, low, high, to);
        if (low >= 'A') edge(from, low | 0x20, high | 0x20, to);
      }
    };
    const int32_t u = state();
    edge(slash, 'u', 'u', u);
    if (!free) {  // only the controls that are in the class
      const int32_t zeros = emit_bytes("00", u);
      for (char32_t c = 0; c < 0x20; ++c) {
        if (!escaped.contains(c)) continue;
        const int32_t digit = state();
        const char last = "0123456789ABCDEF"[c & 15];
        edge(zeros, '0' + static_cast<int>(c >> 4), '0' + static_cast<int>(c >> 4), digit);
        hex(digit, {{last, last}}, end);
      }
      return;
    }
    edge(slash, '/', '/', end);
    int32_t last[4];  // last[k]: k hexadecimal digits before `end`
    last[0] = end;
    for (int k = 1; k < 4; ++k) {
      last[k] = state();
      hex(last[k], {{'0', '9'}, {'A', 'F'}}, last[k - 1]);
    }
    hex(u, {{'0', '9'}, {'A', 'C'}, {'E', 'F'}}, last[3]);
    const int32_t d = state();
    hex(u, {{'D', 'D'}}, d);
    hex(d, {{'0', '7'}}, last[2]);
    const int32_t high2 = state(), high3 = state(), low0 = state(), low1 = state();
    hex(d, {{'8', '9'}, {'A', 'B'}}, high2);
    hex(high2, {{'0', '9'}, {'A', 'F'}}, high3);
    hex(high3, {{'0', '9'}, {'A', 'F'}}, low0);
    hex(emit_bytes("\\u", low0), {{'D', 'D'}}, low1);
    hex(low1, {{'C', 'F'}}, last[2]);
  }

  static bool small(const Expr& e) {
    return e.kind == Kind::Class || e.kind == Kind::JsonChar || e.kind == Kind::Rule || e.kind == Kind::Tag ||
           (e.kind == Kind::Bytes && e.bytes.size() <= 4);
  }
  // `body`, or a call of it where it is written several times and not small.
  int32_t emit_copy(const Expr& body, int32_t from, int32_t& hoisted, bool several) {
    if (!several || small(body)) return emit(body, from);
    if (hoisted < 0) {
      hoisted = open_rule();
      hoisted_.emplace_back(hoisted, &body);
    }
    return call(from, hoisted);
  }

  int32_t emit_repeat(const Expr& expr, int32_t from) {
    const Expr& body = expr.parts[0];
    const bool several = expr.max < 0 ? expr.min > 0 : expr.max > 1;
    int32_t hoisted = -1;
    for (int i = 0; i < expr.min && !full(); ++i) from = emit_copy(body, from, hoisted, several);
    if (expr.max < 0) {
      const int32_t loop = state();
      jump(from, loop);
      jump(emit_copy(body, loop, hoisted, several), loop);
      return loop;
    }
    const int32_t end = state();
    jump(from, end);
    for (int i = expr.min; i < expr.max && !full(); ++i) {
      from = emit_copy(body, from, hoisted, several);
      jump(from, end);
    }
    return end;
  }

  // The automaton that searches one string: in state i the text read so far ends with the first i bytes of it. It ends
  // where the string is found; or where it has not been.
  int32_t emit_search(const Expr& expr, int32_t from) {
    const std::string& word = expr.bytes;
    const bool find = expr.kind == Kind::Until;
    const int32_t end = state(), found = find ? end : -1;
    std::vector<int32_t> seen(std::max<size_t>(1, word.size()));
    for (int32_t& s : seen) s = state();
    jump(from, seen[0]);
    const auto next = [&](size_t i, int byte) {
      const std::string read = word.substr(0, i) + static_cast<char>(byte);
      size_t size = std::min(read.size(), word.size());
      while (size > 0 && !read.ends_with(std::string_view(word).substr(0, size))) --size;
      return size == word.size() && size > 0 ? found : seen[size];
    };
    for (size_t i = 0; i < seen.size(); ++i) {
      for (int low = 0; low < 256;) {
        const int32_t target = next(i, low);
        int high = low;
        while (high < 255 && next(i, high + 1) == target) ++high;
        if (target >= 0) edge(seen[i], low, high, target);
        low = high + 1;
      }
      for (const int t : expr.tags) edge(seen[i], kFirstTag + t, kFirstTag + t, end);
      for (const int t : expr.passed) edge(seen[i], kFirstTag + t, kFirstTag + t, seen[0]);
      if (!find) jump(seen[i], end);
    }
    return end;
  }

  const Rules& rules_;
  const size_t max_states_;
  Automaton out_{};
  std::map<std::pair<bool, CodePoints>, int32_t> classes_{};
  std::vector<std::pair<int32_t, const Expr*>> hoisted_{};
};

// Drops edges to states from which the rule's end can't be reached. False when nothing of the root is left.
bool drop_dead_ends(Automaton& a) {
  std::vector<char> lives(a.states.size(), 0);
  for (const int32_t end : a.rule_end) lives[static_cast<size_t>(end)] = 1;
  const auto alive = [&](int32_t state) { return lives[static_cast<size_t>(state)] != 0; };
  const auto call_alive = [&](const Automaton::Call& call) {
    return alive(a.rule_start[static_cast<size_t>(call.rule)]) && alive(call.target);
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t s = a.states.size(); s-- > 0;) {
      if (lives[s] != 0) continue;
      const Automaton::State& state = a.states[s];
      const bool now = std::ranges::any_of(state.jumps, alive) ||
                       std::ranges::any_of(state.edges, [&](const auto& e) { return alive(e.target); }) ||
                       std::ranges::any_of(state.calls, call_alive);
      if (now) lives[s] = 1, changed = true;
    }
  }
  for (Automaton::State& state : a.states) {
    std::erase_if(state.edges, [&](const auto& e) { return !alive(e.target); });
    std::erase_if(state.calls, [&](const auto& c) { return !call_alive(c); });
    std::erase_if(state.jumps, [&](int32_t t) { return !alive(t); });
  }
  return alive(a.rule_start[static_cast<size_t>(a.root)]);
}

// What each rule may call before any byte.
class FirstCalls {
 public:
  explicit FirstCalls(const Automaton& automaton)
      : a_(automaton), nullable_(a_.rule_start.size(), 0), calls_(a_.rule_start.size()) {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t r = 0; r < nullable_.size(); ++r) {
        if (!scan(r) || nullable_[r] != 0) continue;
        nullable_[r] = 1;
        changed = true;
      }
    }
  }

  const std::vector<int32_t>& of(size_t rule) const { return calls_[rule]; }

 private:
  // Goes to every state of the rule that is reached without a symbol; whether its end is one.
  bool scan(size_t r) {
    std::vector<int32_t> open{a_.rule_start[r]};
    std::unordered_set<int32_t> seen{a_.rule_start[r]};
    calls_[r].clear();
    bool end = false;
    const auto reach = [&](int32_t s) {
      if (seen.insert(s).second) open.push_back(s);
    };
    while (!open.empty()) {
      const int32_t s = open.back();
      open.pop_back();
      end = end || s == a_.rule_end[r];
      for (const int32_t t : a_.states[static_cast<size_t>(s)].jumps) reach(t);
      for (const Automaton::Call& call : a_.states[static_cast<size_t>(s)].calls) {
        calls_[r].push_back(call.rule);
        if (nullable_[static_cast<size_t>(call.rule)] != 0) reach(call.target);
      }
    }
    return end;
  }

  const Automaton& a_;
  std::vector<char> nullable_;
  std::vector<std::vector<int32_t>> calls_;
};

// The rule that calls itself before any byte, or -1.
int32_t left_recursive_rule(const Automaton& a) {
  const FirstCalls first_calls(a);
  std::vector<char> mark(a.rule_start.size(), 0);  // 1: on the path, 2: done
  for (size_t r = 0; r < mark.size(); ++r) {
    if (mark[r] != 0) continue;
    std::vector<std::pair<size_t, size_t>> path{{r, 0}};
    mark[r] = 1;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == first_calls.of(rule).size()) {
        mark[rule] = 2;
        path.pop_back();
        continue;
      }
      const auto callee = static_cast<size_t>(first_calls.of(rule)[next++]);
      if (mark[callee] == 1) return static_cast<int32_t>(callee);
      if (mark[callee] == 0) {
        mark[callee] = 1;
        path.emplace_back(callee, 0);
      }
    }
  }
  return -1;
}

}  // namespace

Result<Automaton> build_automaton(const Rules& rules, int root, int max_states) {
  PLUMB_TRY(Automaton automaton, Builder(rules, max_states).build(root));
  if (!drop_dead_ends(automaton)) {
    return Error{Code::Usage, "no text satisfies the constraint", "some part of it matches nothing, or never ends", {}};
  }
  if (const int32_t rule = left_recursive_rule(automaton); rule >= 0) {
    const bool named = static_cast<size_t>(rule) < rules.names.size();
    return Error{Code::Usage,
                 "rule '" + (named ? rules.names[static_cast<size_t>(rule)] : std::string("of a repetition")) +
                     "' calls itself before any character",
                 "left recursion is not offered",
                 {"a repetition, such as item (\",\" item)*"}};
  }
  return automaton;
}

}  // namespace plumb::grammar
