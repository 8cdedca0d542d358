// Rules as a network of states over bytes: edges on byte ranges and tags, and calls of other rules. Recursion is a
// call, so a state together with the stack of calls still open says what may follow.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "grammar/expr.h"

namespace plumb::grammar {

inline constexpr int kFirstTag = 256;  // symbols 0 ... 255 are bytes, 256 + k is tag k

struct Automaton {
  struct Edge {
    int32_t low = 0, high = 0;  // symbols, inclusive
    int32_t target = 0;
  };
  struct Call {
    int32_t rule = 0;
    int32_t target = 0;  // where the caller goes on
  };
  struct State {
    std::vector<Edge> edges{};
    std::vector<Call> calls{};
    std::vector<int32_t> jumps{};  // without a symbol
  };
  std::vector<State> states{};
  std::vector<int32_t> rule_start{}, rule_end{};  // the end has no edges of its own
  int32_t root = 0;                               // a rule
};

// Every state that stays can reach its rule's end. Errors (Code::Usage): no text matches at all, a rule calls itself
// before any byte (left recursion), or there would be over `max_states` states.
Result<Automaton> build_automaton(const Rules& rules, int root, int max_states = 200'000);

}  // namespace plumb::grammar
