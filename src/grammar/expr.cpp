#include "grammar/expr.h"

#include <algorithm>
#include <cstddef>

namespace plumb::grammar {

CodePoints::CodePoints(std::initializer_list<Range> ranges) {
  for (const auto& [low, high] : ranges) add(low, high);
}

void CodePoints::add(char32_t low, char32_t high) {
  if (low > high) return;
  std::vector<Range> merged;
  merged.reserve(ranges_.size() + 1);
  size_t i = 0;
  for (; i < ranges_.size() && ranges_[i].second + 1 < low; ++i) merged.push_back(ranges_[i]);
  for (; i < ranges_.size() && ranges_[i].first <= high + 1; ++i) {
    low = std::min(low, ranges_[i].first);
    high = std::max(high, ranges_[i].second);
  }
  merged.emplace_back(low, high);
  merged.insert(merged.end(), ranges_.begin() + static_cast<ptrdiff_t>(i), ranges_.end());
  ranges_.swap(merged);
}

void CodePoints::add(const CodePoints& other) {
  for (const auto& [low, high] : other.ranges_) add(low, high);
}

CodePoints CodePoints::complement() const {
  CodePoints out;
  char32_t next = 0;
  for (const auto& [low, high] : ranges_) {
    if (low > next) out.ranges_.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kMaxCodePoint) out.ranges_.emplace_back(next, kMaxCodePoint);
  return out;
}

CodePoints CodePoints::intersect(const CodePoints& other) const {
  CodePoints out;
  for (const auto& [low, high] : ranges_) {
    for (const auto& [other_low, other_high] : other.ranges_) {
      out.add(std::max(low, other_low), std::min(high, other_high));
    }
  }
  return out;
}

bool CodePoints::contains(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [c](const Range& r) { return r.first <= c && c <= r.second; });
}

namespace {

constexpr size_t kMaxCopied = 64;

// Bytes and nodes.
size_t weight(const Expr& expr) {
  size_t sum = 1 + expr.bytes.size();
  for (const Expr& part : expr.parts) sum += weight(part);
  return sum;
}

}  // namespace

Expr Rules::shared(const std::string& name, Expr body) {
  if (weight(body) <= kMaxCopied) return body;
  return rule(add(name, std::move(body)));
}

Expr text(std::string_view bytes) { return {.kind = Expr::Kind::Bytes, .bytes = std::string(bytes)}; }
Expr chars(CodePoints set) { return {.kind = Expr::Kind::Class, .set = std::move(set)}; }
Expr json_chars(CodePoints set) { return {.kind = Expr::Kind::JsonChar, .set = std::move(set)}; }
Expr sequence(std::vector<Expr> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return {.kind = Expr::Kind::Sequence, .parts = std::move(parts)};
}
Expr choice(std::vector<Expr> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return {.kind = Expr::Kind::Choice, .parts = std::move(parts)};
}
Expr repeat(Expr part, int min, int max) {
  Expr out{.kind = Expr::Kind::Repeat, .min = min, .max = max};
  out.parts.push_back(std::move(part));
  return out;
}
Expr optional(Expr part) { return repeat(std::move(part), 0, 1); }
Expr rule(int index) { return {.kind = Expr::Kind::Rule, .index = index}; }
Expr tag(int index) { return {.kind = Expr::Kind::Tag, .index = index}; }
Expr until(std::string_view spelled, std::vector<int> tags, std::vector<int> passed) {
  return {
      .kind = Expr::Kind::Until, .bytes = std::string(spelled), .tags = std::move(tags), .passed = std::move(passed)};
}
Expr without(std::string_view spelled, std::vector<int> passed) {
  return {.kind = Expr::Kind::Without, .bytes = std::string(spelled), .passed = std::move(passed)};
}

}  // namespace plumb::grammar
