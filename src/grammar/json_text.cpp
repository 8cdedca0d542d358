#include "grammar/json_text.h"

#include <algorithm>
#include <map>

#include "grammar/numbers.h"
#include "text/unicode.h"

namespace plumb::grammar {

Expr json_space() { return choice({text(""), text(" "), sequence({text("\n"), repeat(text(" "), 0, 32)})}); }

Expr json_string(int min, int max) {
  return sequence({text("\""), repeat(json_chars(CodePoints::all()), min, max), text("\"")});
}

Expr braces(Expr members) { return sequence({text("{"), json_space(), std::move(members), json_space(), text("}")}); }
Expr brackets(Expr items) { return sequence({text("["), json_space(), std::move(items), json_space(), text("]")}); }
Expr comma() { return sequence({text(","), json_space()}); }
Expr member(Expr key, Expr value) { return sequence({std::move(key), text(":"), json_space(), std::move(value)}); }

Expr separated(const Expr& part, int min, int max, bool follows) {
  if (max == 0) return text("");
  const Expr next = sequence({comma(), part});
  if (follows) return repeat(next, min, max);
  const Expr some = sequence({part, repeat(next, std::max(0, min - 1), max < 0 ? -1 : max - 1)});
  return min > 0 ? some : optional(some);
}

JsonRules add_json_rules(Rules& rules) {
  const JsonRules out{.value = rules.add("value"), .object = rules.add("object")};
  const Expr pair = member(json_string(0, -1), rule(out.value));
  rules.bodies[static_cast<size_t>(out.object)] = braces(separated(pair, 0, -1, false));
  rules.bodies[static_cast<size_t>(out.value)] =
      choice({rule(out.object), brackets(separated(rule(out.value), 0, -1, false)), json_string(0, -1), numbers({}),
              text("true"), text("false"), text("null")});
  return out;
}

Expr json_key_except(const std::vector<std::string>& names, Rules& rules) {
  struct Node {
    std::map<char32_t, int> children{};
    bool taken = false;
    int rule = -1;
  };
  std::vector<Node> tree(1);
  const CodePoints plain{{0x20, 0x21}, {0x23, 0x5b}, {0x5d, kMaxCodePoint}};
  for (const std::string& name : names) {
    const bool escapes =
        std::ranges::any_of(name, [](char c) { return c == '"' || c == '\\' || (c >= 0 && c < 0x20); });
    if (escapes) continue;  // it can't be written without escapes anyway
    int at = 0;
    for (size_t i = 0; i < name.size();) {
      const utf8::Decoded d = utf8::decode(name, i);
      i += d.length;
      const auto [entry, fresh] = tree[static_cast<size_t>(at)].children.try_emplace(d.code_point, 0);
      int& child = entry->second;
      if (fresh) {
        child = static_cast<int>(tree.size());
        at = child;
        tree.emplace_back();
      } else {
        at = child;
      }
    }
    tree[static_cast<size_t>(at)].taken = true;
  }
  for (Node& node : tree) node.rule = rules.add("key");
  for (const Node& node : tree) {
    CodePoints named_here;
    std::vector<Expr> ways;
    for (const auto& [c, child] : node.children) {
      named_here.add(c, c);
      ways.push_back(sequence({chars({{c, c}}), rule(tree[static_cast<size_t>(child)].rule)}));
    }
    ways.push_back(sequence({chars(plain.intersect(named_here.complement())), repeat(chars(plain), 0, -1)}));
    if (!node.taken) ways.push_back(text(""));
    rules.bodies[static_cast<size_t>(node.rule)] = choice(std::move(ways));
  }
  return sequence({text("\""), rule(tree[0].rule), text("\"")});
}

}  // namespace plumb::grammar
