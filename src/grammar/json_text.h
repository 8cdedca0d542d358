// The parts of JSON text that all rules share.
#pragma once

#include <string>
#include <vector>

#include "grammar/expr.h"

namespace plumb::grammar {

// White space between tokens: none, one space, or a new line with up to 32 spaces, so never without end.
Expr json_space();
// `min` to `max` characters between quotes (max < 0: any number).
Expr json_string(int min, int max);
// {"k": v, ...} and [v, ...] around the members.
Expr braces(Expr members);
Expr brackets(Expr items);
Expr comma();
// key, a Expr that includes its quotes, then the value.
Expr member(Expr key, Expr value);
// `part` separated by commas, `min` to `max` times; `follows`: something stands before it, so it begins with a comma.
Expr separated(const Expr& part, int min, int max, bool follows);
// A key without escapes that is none of the named ones: their tree, left at some character or ended inside it.
Expr json_key_except(const std::vector<std::string>& names, Rules& rules);

struct JsonRules {
  int value = -1, object = -1;
};
// Adds the rules of any value and any object.
JsonRules add_json_rules(Rules& rules);

}  // namespace plumb::grammar
