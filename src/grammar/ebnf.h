// Grammars in the notation that people know from llama.cpp and XGrammar:
//   root ::= "yes" | "no" (" because " [a-z ]{1,40})?   # a comment
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expr.h"

namespace plumb::grammar {

// Adds the rules to `rules` and gives the index of "root", or of the first rule when none has that name. Errors
// (Code::Usage) name the line.
Result<int> parse_ebnf(std::string_view source, Rules& rules);

}  // namespace plumb::grammar
