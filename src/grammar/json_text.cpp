#include "grammar/json_text.h"

#include <algorithm>

#include "grammar/numbers.h"

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

}  // namespace plumb::grammar
