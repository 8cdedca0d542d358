// Regular expressions as JSON Schema and the usual clients write them (ECMAScript's syntax, and Python's named groups).
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expr.h"

namespace plumb::grammar {

// Made of Class, Sequence, Choice and Repeat alone. `search`: the match may lie anywhere in the text unless ^ and $ say
// otherwise, as in JSON Schema's "pattern"; else it is the whole text. \d, \w and \s are ASCII, and \D, \W and \S take
// nothing on which engines differ. Errors (Code::Usage) name the position: look-around, back references, \b and flags
// are not offered.
Result<Expr> parse_regex(std::string_view pattern, bool search);

// The same texts, but each character as it stands inside a JSON string.
Expr inside_json(Expr regex);

// `regex` as above, or inside JSON: only texts of `min` to `max` characters (max < 0: any number), as a rule added to
// `rules`. Fails when that takes over 50,000 rules.
Result<Expr> with_length(const Expr& regex, int min, int max, Rules& rules);

}  // namespace plumb::grammar
