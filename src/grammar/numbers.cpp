#include "grammar/numbers.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace plumb::grammar {

namespace {

using Wide = __int128;

constexpr int kDecimals = 6;
constexpr double kHuge = 1e24;  // times 10^6 it still fits 128 bits

Expr digit(char low = '0', char high = '9') {
  return chars({{static_cast<char32_t>(low), static_cast<char32_t>(high)}});
}
Expr digits(size_t count) { return repeat(digit(), static_cast<int>(count), static_cast<int>(count)); }

Wide power10(int exponent) {
  Wide value = 1;
  while (exponent-- > 0) value *= 10;
  return value;
}

std::string decimal(Wide value) {
  std::string out;
  do out.insert(out.begin(), static_cast<char>('0' + static_cast<int>(value % 10)));
  while ((value /= 10) > 0);
  return out;
}

// Digit strings from `low` to `high`, both of one length, with a point before the last `decimals` digits.
Expr between(std::string_view low, std::string_view high, size_t decimals) {
  std::vector<Expr> out;
  if (decimals > 0 && low.size() == decimals) {
    out.push_back(text("."));
    decimals = 0;
  }
  if (low.empty()) return sequence({text(""), out.empty() ? text("") : out[0]});
  const bool all =
      low.find_first_not_of('0') == std::string_view::npos && high.find_first_not_of('9') == std::string_view::npos;
  if (all && decimals == 0) {
    out.push_back(digits(low.size()));
    return sequence(std::move(out));
  }
  const std::string zeros(low.size() - 1, '0'), nines(low.size() - 1, '9');
  const auto led_by = [&](char first, char last, std::string_view from, std::string_view to) {
    return sequence({digit(first, last), between(from, to, decimals)});
  };
  std::vector<Expr> ways;
  if (low[0] == high[0]) {
    ways.push_back(led_by(low[0], low[0], low.substr(1), high.substr(1)));
  } else {
    char first = low[0], last = high[0];
    if (low.substr(1) != zeros) ways.push_back(led_by(first, first, low.substr(1), nines)), ++first;
    if (high.substr(1) != nines) ways.push_back(led_by(last, last, zeros, high.substr(1))), --last;
    if (first <= last) ways.push_back(led_by(first, last, zeros, nines));
  }
  out.push_back(choice(std::move(ways)));
  return sequence(std::move(out));
}

// n / 10^decimals for 0 <= low <= n <= high, written with exactly that many decimals.
void add_scaled(Wide low, Wide high, int decimals, bool negative, std::vector<Expr>& ways) {
  if (low > high) return;
  const auto shortest = static_cast<size_t>(decimals) + 1;
  const size_t longest = std::max(shortest, decimal(high).size());
  for (size_t size = std::max(shortest, decimal(low).size()); size <= longest; ++size) {
    const Wide least = size == shortest ? 0 : power10(static_cast<int>(size) - 1);
    std::string from = decimal(std::max(low, least));
    std::string to = decimal(std::min(high, power10(static_cast<int>(size)) - 1));
    from.insert(0, size - from.size(), '0');
    to.insert(0, size - to.size(), '0');
    ways.push_back(sequence({text(negative ? "-" : ""), between(from, to, static_cast<size_t>(decimals))}));
  }
}

struct Scaled {
  Wide low = 0, high = 0;
};

// The integers n with n / 10^decimals inside the bounds. An open side ends 15 digits beyond the other one or 0.
Scaled scaled(const NumberBounds& b, int decimals) {
  const Wide open = power10(15 + decimals) - 1;
  const auto scale = static_cast<long double>(power10(decimals));
  const auto at = [&](double bound) { return static_cast<long double>(std::clamp(bound, -kHuge, kHuge)) * scale; };
  // A double such as 0.1 is not exactly what was written: a bound within rounding of an integer is that integer.
  const auto settle = [](long double value) {
    const long double near = std::nearbyintl(value);
    return std::fabs(value - near) <= 1e-15L * std::max(1.0L, std::fabs(value)) ? near : value;
  };
  Scaled out;
  std::optional<Wide> low, high;
  if (b.min) {
    const long double value = settle(at(*b.min));
    low = static_cast<Wide>(std::ceil(value));
    if (b.min_excluded && static_cast<long double>(*low) == value) ++*low;
  }
  if (b.max) {
    const long double value = settle(at(*b.max));
    high = static_cast<Wide>(std::floor(value));
    if (b.max_excluded && static_cast<long double>(*high) == value) --*high;
  }
  out.low = low ? *low : std::min<Wide>(0, high.value_or(0)) - open;
  out.high = high ? *high : std::max<Wide>(0, low.value_or(0)) + open;
  return out;
}

void add_range(const NumberBounds& bounds, int decimals, std::vector<Expr>& ways) {
  const Scaled range = scaled(bounds, decimals);
  if (range.high >= 0) add_scaled(std::max<Wide>(0, range.low), range.high, decimals, false, ways);
  if (range.low < 0) add_scaled(std::max<Wide>(1, -range.high), -range.low, decimals, true, ways);
}

Expr whole_part() {
  return sequence({optional(text("-")), choice({text("0"), sequence({digit('1', '9'), repeat(digit(), 0, 14)})})});
}

}  // namespace

Expr integers(const NumberBounds& bounds) {
  if (!bounds.min && !bounds.max) return whole_part();
  std::vector<Expr> ways;
  add_range(bounds, 0, ways);
  return choice(std::move(ways));
}

Expr numbers(const NumberBounds& bounds) {
  if (!bounds.min && !bounds.max) {
    const Expr fraction = sequence({text("."), repeat(digit(), 1, 16)});
    const Expr exponent =
        sequence({chars({{'E', 'E'}, {'e', 'e'}}), optional(chars({{'+', '+'}, {'-', '-'}})), repeat(digit(), 1, 2)});
    return sequence({whole_part(), optional(fraction), optional(exponent)});
  }
  std::vector<Expr> ways;
  for (int decimals = 0; decimals <= kDecimals; ++decimals) add_range(bounds, decimals, ways);
  return choice(std::move(ways));
}

}  // namespace plumb::grammar
