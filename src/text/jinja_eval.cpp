#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_interp.h"
#include "text/jinja_lexer.h"
#include "text/unicode.h"

namespace plumb::jinja {

class Interp::Deeper {
 public:
  Deeper(Interp& in, int line) : in_(in) {
    if (++in_.depth_ > in_.limits_.depth) in_.fail(line, "the template recurses too deeply");
  }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  ~Deeper() { --in_.depth_; }

 private:
  Interp& in_;
};

Value Interp::fail(int line, std::string_view message) {
  if (!error_) error_ = template_error(line, message);
  return {};
}

void Interp::charge(int64_t steps, int line) {
  steps_ += steps;
  if (steps_ > limits_.steps) fail(line, fmt::format("the template takes more than {} steps", limits_.steps));
}

Value Interp::make_text(TaintedText text, int line) {
  text_bytes_ += text.bytes.size();
  if (text.bytes.size() > limits_.output_bytes) return fail(line, "a text grows too long");
  if (text_bytes_ > limits_.text_bytes) return fail(line, "the template builds too much text");
  return Value::text(std::move(text));
}

Value Interp::make_text(TextBuilder&& builder, int line) { return make_text(builder.take(), line); }

Value Interp::list_of(std::vector<Value> items, ListKind kind, int line) {
  charge(static_cast<int64_t>(items.size()), line);
  Value out = make_list(std::move(items), kind);
  if (out.depth() > limits_.value_depth) return fail(line, "values nest too deeply");
  return out;
}

Value Interp::dict_of(Dict dict, int line) {
  charge(static_cast<int64_t>(dict.entries.size()), line);
  if (dict.depth > limits_.value_depth) return fail(line, "values nest too deeply");
  return make_dict(std::move(dict));
}

std::vector<Value> Interp::items_of(const Value& value, int line) {
  std::vector<Value> out;
  if (List* list = value.as_list()) {
    if (list->kind == ListKind::Generator && list->consumed) return out;
    if (list->kind == ListKind::Generator) list->consumed = true;
    out = list->items;
  } else if (const Dict* dict = value.as_dict()) {
    for (const auto& entry : dict->entries) out.push_back(entry.first);
  } else if (const TaintedText* text = value.as_text()) {
    charge(static_cast<int64_t>(text->bytes.size()), line);
    for (size_t i = 0; i < text->bytes.size() && ok();) {
      const size_t end = i + utf8::decode(text->bytes, i).length;
      out.push_back(Value::text(plumb::slice(*text, i, end)));
      i = end;
    }
  } else if (!value.is_undefined()) {
    fail(line, fmt::format("'{}' object is not iterable", value.type_name()));
  }
  charge(static_cast<int64_t>(out.size()), line);
  return out;
}

Value Interp::eval(const Expr& expr) {
  const Deeper deeper(*this, expr.line);
  charge(1, expr.line);
  return ok() ? eval_node(expr) : Value();
}

Value Interp::eval_node(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::Constant:
      return expr.constant;
    case ExprKind::Name:
      return eval_name(expr);
    case ExprKind::List:
    case ExprKind::Tuple:
      return eval_sequence(expr);
    case ExprKind::Dict:
      return eval_dict(expr);
    case ExprKind::Concat:
      return eval_concat(expr);
    case ExprKind::Binary: {
      const Value a = eval(*expr.args[0]);
      const Value b = eval(*expr.args[1]);
      return ok() ? binary(expr.text, a, b, expr.line) : Value();
    }
    case ExprKind::Compare:
      return eval_compare(expr);
    case ExprKind::And:
    case ExprKind::Or: {
      Value a = eval(*expr.args[0]);
      return truthy(a) == (expr.kind == ExprKind::And) ? eval(*expr.args[1]) : a;
    }
    case ExprKind::Not:
      return Value(!truthy(eval(*expr.args[0])));
    case ExprKind::Negative:
    case ExprKind::Positive:
      return eval_sign(expr);
    case ExprKind::Conditional:
      return eval_conditional(expr);
    case ExprKind::Attribute: {
      const Value object = eval(*expr.args[0]);
      return ok() ? attribute(object, expr.text, expr.line) : Value();
    }
    case ExprKind::Item:
      return eval_item(expr);
    case ExprKind::Slice:
      return fail(expr.line, "a slice within a tuple of subscripts");
    case ExprKind::Call: {
      const Value callee = eval(*expr.args[0]);
      Args args = eval_args(expr, 1);
      return ok() ? call(callee, std::move(args)) : Value();
    }
    case ExprKind::Filter:
      return eval_filter(expr, nullptr);
    case ExprKind::Test: {
      const Value subject = eval(*expr.args[0]);
      Args args = eval_args(expr, 1);
      return ok() ? Value(test(expr.text, subject, std::move(args))) : Value();
    }
  }
  return {};
}

Value Interp::eval_name(const Expr& expr) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get())
    if (const Value* value = scope->find(expr.text)) return *value;
  for (const std::string_view global : {"namespace", "range", "dict", "raise_exception", "strftime_now"})
    if (expr.text == global) {
      Callable callable;
      callable.name = expr.text;
      return Value(std::make_shared<const Callable>(std::move(callable)));
    }
  return Value::undefined(fmt::format("'{}' is undefined", expr.text));
}

Value Interp::eval_sequence(const Expr& expr) {
  std::vector<Value> items;
  for (const ExprPtr& arg : expr.args) items.push_back(eval(*arg));
  if (!ok()) return {};
  return list_of(std::move(items), expr.kind == ExprKind::List ? ListKind::List : ListKind::Tuple, expr.line);
}

Value Interp::eval_dict(const Expr& expr) {
  Dict dict;
  for (size_t i = 0; i + 1 < expr.args.size() && ok(); i += 2) {
    const Value key = eval(*expr.args[i]);
    if (!dict.set(key, eval(*expr.args[i + 1])))
      return fail(expr.line, fmt::format("unhashable type: '{}'", key.type_name()));
  }
  return ok() ? dict_of(std::move(dict), expr.line) : Value();
}

Value Interp::eval_concat(const Expr& expr) {
  TextBuilder out;
  for (const ExprPtr& arg : expr.args) {
    append_str(out, eval(*arg));
    if (!ok()) return {};
    if (out.size() > limits_.output_bytes) return fail(expr.line, "a text grows too long");
  }
  return make_text(std::move(out), expr.line);
}

Value Interp::eval_compare(const Expr& expr) {
  Value left = eval(*expr.args[0]);
  for (size_t i = 0; i < expr.ops.size() && ok(); ++i) {
    Value right = eval(*expr.args[i + 1]);
    if (!ok() || !compare(expr.ops[i], left, right, expr.line)) return Value(false);
    left = std::move(right);
  }
  return Value(ok());
}

Value Interp::eval_conditional(const Expr& expr) {
  const bool condition = truthy(eval(*expr.args[0]));
  if (!ok()) return {};
  if (condition) return eval(*expr.args[1]);
  if (expr.args[2]) return eval(*expr.args[2]);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
}

Value Interp::eval_item(const Expr& expr) {
  const Value object = eval(*expr.args[0]);
  if (!ok()) return {};
  if (expr.args[1]->kind == ExprKind::Slice) return slice(object, *expr.args[1]);
  const Value key = eval(*expr.args[1]);
  return ok() ? item(object, key, expr.line) : Value();
}

Value Interp::eval_sign(const Expr& expr) {
  const Value value = eval(*expr.args[0]);
  const bool negative = expr.kind == ExprKind::Negative;
  if (const auto* d = value.get<double>()) return Value(negative ? -*d : *d);
  if (const auto i = value.as_int()) return negative ? binary("-", Value(Int{0}), Value(*i), expr.line) : Value(*i);
  if (const auto* undefined = value.get<Undefined>(); undefined && undefined->hint)
    return fail(expr.line, *undefined->hint);
  return fail(expr.line, fmt::format("bad operand type for unary {}: '{}'", negative ? '-' : '+', value.type_name()));
}

// `input` replaces the missing first filter input of a filter block.
Value Interp::eval_filter(const Expr& expr, const Value* input) {
  const Deeper deeper(*this, expr.line);
  if (!ok()) return {};
  Value value;
  if (expr.args[0] == nullptr) {
    value = input != nullptr ? *input : Value();
  } else if (input != nullptr && expr.args[0]->kind == ExprKind::Filter) {
    value = eval_filter(*expr.args[0], input);
  } else {
    value = eval(*expr.args[0]);
  }
  Args args = eval_args(expr, 1);
  return ok() ? filter(expr.text, value, std::move(args)) : Value();
}

Args Interp::eval_args(const Expr& expr, size_t skip) {
  Args args;
  args.line = expr.line;
  for (size_t i = skip; i < expr.args.size() && ok(); ++i) args.positional.push_back(eval(*expr.args[i]));
  for (const Keyword& keyword : expr.keywords) args.keywords.emplace_back(keyword.name, eval(*keyword.value));
  if (expr.star_args && ok())
    for (Value& value : items_of(eval(*expr.star_args), expr.line)) args.positional.push_back(std::move(value));
  if (expr.star_keywords && ok()) {
    const Value keywords = eval(*expr.star_keywords);
    const Dict* dict = keywords.as_dict();
    if (dict == nullptr) {
      fail(expr.line, "the argument after ** must be a mapping");
      return args;
    }
    for (const auto& [key, value] : dict->entries) args.keywords.emplace_back(to_str(key).bytes, value);
  }
  return args;
}

std::vector<std::optional<Value>> Interp::bind(Args& args, std::string_view callee,
                                               std::initializer_list<std::string_view> names, size_t required) {
  std::vector<std::optional<Value>> out(names.size());
  if (args.positional.size() > names.size()) {
    fail(args.line, fmt::format("{} takes at most {} arguments", callee, names.size()));
    return out;
  }
  for (size_t i = 0; i < args.positional.size(); ++i) out[i] = args.positional[i];
  for (auto& [name, value] : args.keywords) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) {
      fail(args.line, fmt::format("{} got an unexpected keyword argument '{}'", callee, name));
      return out;
    }
    out[static_cast<size_t>(it - names.begin())] = value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!out[i]) fail(args.line, fmt::format("{} misses the argument '{}'", callee, *(names.begin() + i)));
  return out;
}

}  // namespace plumb::jinja
