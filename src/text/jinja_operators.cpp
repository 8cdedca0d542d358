// Python's operators on template values.
#include <fmt/format.h>

#include <cmath>

#include "text/jinja_interp.h"

namespace plumb::jinja {
namespace {

std::optional<Int> int_power(Int base, Int exponent) {
  Int out = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(out, base, &out)) return std::nullopt;
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return std::nullopt;
  }
  return out;
}

// Floor division and its remainder, which takes the divisor's sign. b != 0.
Int floor_div(Int a, Int b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0); }
Int floor_mod(Int a, Int b) {
  const Int r = a % b;
  return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}
double float_mod(double a, double b) {
  const double r = std::fmod(a, b);
  if (r == 0) return std::copysign(0.0, b);
  return (r < 0) != (b < 0) ? r + b : r;
}

Value int_operation(Interp& in, std::string_view op, Int a, Int b, int line) {
  Int out = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &out);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &out);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else if (op == "**") {
    if (b < 0) return a == 0 ? in.fail(line, "0 to a negative power") : Value(std::pow(double(a), double(b)));
    const auto power = int_power(a, b);
    overflow = !power;
    out = power.value_or(0);
  } else {
    if (b == 0) return in.fail(line, "division by zero");
    if (op == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
    if (b == -1) return int_operation(in, op == "%" ? "*" : "-", 0, op == "%" ? Int{0} : a, line);
    out = op == "//" ? floor_div(a, b) : floor_mod(a, b);
  }
  return overflow ? in.fail(line, "an integer grows out of range") : Value(out);
}

Value float_operation(Interp& in, std::string_view op, double a, double b, int line) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") {
    if (a < 0 && std::floor(b) != b) return in.fail(line, "a negative number to a fractional power");
    if (a == 0 && b < 0) return in.fail(line, "0 to a negative power");
    return Value(std::pow(a, b));
  }
  if (b == 0) return in.fail(line, "division by zero");
  if (op == "/") return Value(a / b);
  const double r = float_mod(a, b);
  return Value(op == "%" ? r : std::round((a - r) / b));
}

Value repeat(Interp& in, const Value& value, Int count, int line) {
  const size_t n = count < 0 ? 0 : static_cast<size_t>(std::min<Int>(count, INT32_MAX));
  if (const TaintedText* text = value.as_text()) {
    if (n * text->bytes.size() > in.limits().output_bytes) return in.fail(line, "a text grows too long");
    TextBuilder out;
    for (size_t i = 0; i < n && !text->bytes.empty(); ++i) out.append(*text);
    return in.make_text(std::move(out), line);
  }
  const List& list = *value.as_list();
  in.charge(static_cast<int64_t>(4 * std::min<size_t>(n, 1u << 30) * list.items.size()), line);
  std::vector<Value> items;
  for (size_t i = 0; i < n && in.ok() && !list.items.empty(); ++i)
    items.insert(items.end(), list.items.begin(), list.items.end());
  return in.ok() ? in.list_of(std::move(items), list.kind, line) : Value();
}

bool repeatable(const Value& v) {
  const List* list = v.as_list();
  return v.as_text() != nullptr || (list && (list->kind == ListKind::List || list->kind == ListKind::Tuple));
}

// Texts with texts, lists with lists, tuples with tuples; nullopt for anything else.
std::optional<Value> joined(Interp& in, const Value& a, const Value& b, int line) {
  if (a.as_text() && b.as_text()) {
    TextBuilder out;
    out.append(*a.as_text());
    out.append(*b.as_text());
    return in.make_text(std::move(out), line);
  }
  const List* x = a.as_list();
  const List* y = b.as_list();
  if (!x || !y || x->kind != y->kind || !repeatable(a)) return std::nullopt;
  in.charge(static_cast<int64_t>(4 * (x->items.size() + y->items.size())), line);  // before the memory is taken
  if (!in.ok()) return Value();
  std::vector<Value> items = x->items;
  items.insert(items.end(), y->items.begin(), y->items.end());
  return in.list_of(std::move(items), x->kind, line);
}

}  // namespace

Value Interp::binary(std::string_view op, const Value& a, const Value& b, int line) {
  if (op == "%" && a.as_text()) return percent_format(*this, *a.as_text(), b, line);
  for (const Value* operand : {&a, &b})
    if (const auto* undefined = operand->get<Undefined>())
      return fail(line, undefined->hint ? *undefined->hint : "an undefined value in an operation");
  const auto x = a.as_int();
  const auto y = b.as_int();
  if (x && y) return int_operation(*this, op, *x, *y, line);
  const auto p = a.as_number();
  const auto q = b.as_number();
  if (p && q) return float_operation(*this, op, *p, *q, line);
  if (op == "*" && repeatable(a) && y) return repeat(*this, a, *y, line);
  if (op == "*" && repeatable(b) && x) return repeat(*this, b, *x, line);
  if (op == "+") {
    if (auto out = joined(*this, a, b, line)) return *out;
  }
  return fail(line, fmt::format("unsupported operand types for {}: '{}' and '{}'", op, a.type_name(), b.type_name()));
}

bool Interp::contains(const Value& container, const Value& item, int line) {
  if (const TaintedText* text = container.as_text()) {
    if (const TaintedText* part = item.as_text()) {
      charge(static_cast<int64_t>(text->bytes.size() / 64), line);
      return text->bytes.find(part->bytes) != std::string::npos;
    }
    fail(line, fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
    return false;
  }
  if (const Dict* dict = container.as_dict()) {
    if (!key_of(item)) fail(line, fmt::format("unhashable type: '{}'", item.type_name()));
    return dict->find(item) != nullptr;
  }
  for (const Value& candidate : items_of(container, line))
    if (equal(candidate, item)) return true;
  return false;
}

bool Interp::compare(std::string_view op, const Value& a, const Value& b, int line) {
  if (op == "in") return contains(b, a, line);
  if (op == "not in") return !contains(b, a, line);
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  for (const Value* operand : {&a, &b})
    if (const auto* undefined = operand->get<Undefined>()) {
      fail(line, undefined->hint ? *undefined->hint : "an undefined value in a comparison");
      return false;
    }
  // NaN makes every order false, so each is asked directly and never as the negation of another.
  const bool swapped = op == ">" || op == ">=";
  const auto is_less = swapped ? less(b, a) : less(a, b);
  if (!is_less) {
    fail(line, fmt::format("'{}' not supported between instances of '{}' and '{}'", op, a.type_name(), b.type_name()));
    return false;
  }
  return *is_less || (op.size() == 2 && equal(a, b));
}

}  // namespace plumb::jinja
