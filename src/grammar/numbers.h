// JSON numbers within bounds, as text.
#pragma once

#include <optional>

#include "grammar/expr.h"

namespace plumb::grammar {

struct NumberBounds {
  std::optional<double> min{}, max{};
  bool min_excluded = false, max_excluded = false;
};

// At most 15 digits unless a bound has more.
Expr integers(const NumberBounds& bounds);
// Without bounds up to 16 decimals and an exponent of two digits; with bounds up to 6 decimals and no exponent. Nothing
// (an empty choice) when the bounds leave no such number.
Expr numbers(const NumberBounds& bounds);

}  // namespace plumb::grammar
