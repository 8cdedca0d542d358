#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "text/jinja_parser_impl.h"

namespace plumb::jinja {
namespace {

bool integer_value(std::string_view text, Int& out) {
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && (text[1] | 0x20) >= 'a') {
    base = (text[1] | 0x20) == 'x' ? 16 : (text[1] | 0x20) == 'o' ? 8 : 2;
    text.remove_prefix(2);
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  out = static_cast<Int>(value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

ExprPtr Parser::make(ExprKind kind, int line, std::vector<ExprPtr> args, std::string text) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  expr->args = std::move(args);
  expr->text = std::move(text);
  return measured(std::move(expr));
}

ExprPtr Parser::measured(ExprPtr expr) {
  const auto below = [&](const ExprPtr& child) {
    if (child) expr->depth = std::max(expr->depth, child->depth + 1);
  };
  for (const ExprPtr& arg : expr->args) below(arg);
  for (const Keyword& keyword : expr->keywords) below(keyword.value);
  below(expr->star_args);
  below(expr->star_keywords);
  if (expr->depth > kMaxTreeDepth) fail("the expression is too deep");
  return expr;
}

bool Parser::tuple_ends() const {
  const Token& t = current();
  return t.kind == TokenKind::VariableEnd || t.kind == TokenKind::BlockEnd || t.is_operator(")") || t.is_name("in") ||
         t.is_name("recursive") || t.kind == TokenKind::End;
}

ExprPtr Parser::tuple(const TupleRules& rules) {
  const int line = current().line;
  std::vector<ExprPtr> args;
  bool is_tuple = false;
  while (ok() && !tuple_ends()) {
    args.push_back(rules.conditional ? expression() : or_expression());
    if (!accept_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && args.size() == 1) return std::move(args[0]);
  if (args.empty() && !rules.in_brackets) fail(fmt::format("expected an expression, found {}", shown()));
  return make(ExprKind::Tuple, line, std::move(args));
}

ExprPtr Parser::expression() {
  if (++nesting_ > kMaxNesting) fail("the expression nests too deeply");
  ExprPtr expr = or_expression();
  while (ok() && current().is_name("if")) {
    const int line = take().line;
    ExprPtr condition = or_expression();
    ExprPtr otherwise;
    if (accept_name("else")) otherwise = expression();
    std::vector<ExprPtr> args;
    args.push_back(std::move(condition));
    args.push_back(std::move(expr));
    args.push_back(std::move(otherwise));
    expr = make(ExprKind::Conditional, line, std::move(args));
  }
  --nesting_;
  return expr;
}

namespace {
std::vector<ExprPtr> pair(ExprPtr a, ExprPtr b) {
  std::vector<ExprPtr> out;
  out.push_back(std::move(a));
  out.push_back(std::move(b));
  return out;
}
std::vector<ExprPtr> single(ExprPtr a) {
  std::vector<ExprPtr> out;
  out.push_back(std::move(a));
  return out;
}
}  // namespace

ExprPtr Parser::or_expression() {
  ExprPtr left = and_expression();
  while (ok() && current().is_name("or")) {
    const int line = take().line;
    ExprPtr right = and_expression();
    left = make(ExprKind::Or, line, pair(std::move(left), std::move(right)));
  }
  return left;
}

ExprPtr Parser::and_expression() {
  ExprPtr left = not_expression();
  while (ok() && current().is_name("and")) {
    const int line = take().line;
    ExprPtr right = not_expression();
    left = make(ExprKind::And, line, pair(std::move(left), std::move(right)));
  }
  return left;
}

ExprPtr Parser::not_expression() {
  if (!current().is_name("not")) return comparison();
  const int line = take().line;
  if (++nesting_ > kMaxNesting) fail("the expression nests too deeply");
  ExprPtr inner = ok() ? not_expression() : nullptr;
  --nesting_;
  return make(ExprKind::Not, line, single(std::move(inner)));
}

ExprPtr Parser::comparison() {
  const int line = current().line;
  ExprPtr first = sum();
  auto expr = std::make_unique<Expr>();
  expr->kind = ExprKind::Compare;
  expr->line = line;
  expr->args.push_back(std::move(first));
  while (ok()) {
    const Token& t = current();
    std::string op;
    for (const std::string_view known : {"==", "!=", "<", "<=", ">", ">="})
      if (t.is_operator(known)) op = known;
    if (t.is_name("in")) op = "in";
    if (t.is_name("not") && ahead().is_name("in")) {
      take();
      op = "not in";
    }
    if (op.empty()) break;
    take();
    expr->ops.push_back(op);
    expr->args.push_back(sum());
  }
  if (expr->ops.empty()) return std::move(expr->args[0]);
  return measured(std::move(expr));
}

ExprPtr Parser::sum() {
  ExprPtr left = concatenation();
  while (ok() && (current().is_operator("+") || current().is_operator("-"))) {
    const Token op = take();
    ExprPtr right = concatenation();
    left = make(ExprKind::Binary, op.line, pair(std::move(left), std::move(right)), op.text);
  }
  return left;
}

ExprPtr Parser::concatenation() {
  const int line = current().line;
  std::vector<ExprPtr> args = single(product());
  while (ok() && accept_operator("~")) args.push_back(product());
  if (args.size() == 1) return std::move(args[0]);
  return make(ExprKind::Concat, line, std::move(args));
}

ExprPtr Parser::product() {
  ExprPtr left = power();
  while (ok() && current().kind == TokenKind::Operator) {
    const std::string& op = current().text;
    if (op != "*" && op != "/" && op != "//" && op != "%") break;
    const Token token = take();
    ExprPtr right = power();
    left = make(ExprKind::Binary, token.line, pair(std::move(left), std::move(right)), token.text);
  }
  return left;
}

ExprPtr Parser::power() {
  ExprPtr left = unary(true);
  while (ok() && current().is_operator("**")) {
    const int line = take().line;
    ExprPtr right = unary(true);
    left = make(ExprKind::Binary, line, pair(std::move(left), std::move(right)), "**");
  }
  return left;
}

ExprPtr Parser::unary(bool with_filters) {
  ExprPtr expr;
  const int line = current().line;
  if (current().is_operator("-") || current().is_operator("+")) {
    const ExprKind kind = take().text == "-" ? ExprKind::Negative : ExprKind::Positive;
    if (++nesting_ > kMaxNesting) fail("the expression nests too deeply");
    ExprPtr inner = ok() ? unary(false) : nullptr;
    --nesting_;
    expr = make(kind, line, single(std::move(inner)));
  } else {
    expr = primary();
  }
  expr = postfix(std::move(expr));
  return with_filters ? filters_and_tests(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::primary() {
  const int line = current().line;
  if (!ok()) return nullptr;
  if (accept_operator("(")) {
    ExprPtr inner = tuple({.in_brackets = true});
    expect_operator(")");
    return inner;
  }
  if (current().is_operator("[")) return literal_list();
  if (current().is_operator("{")) return literal_dict();
  ExprPtr constant = make(ExprKind::Constant, line);
  Int integer = 0;
  switch (current().kind) {
    case TokenKind::Name: {
      const std::string name = take().text;
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        constant->constant = Value(name[0] == 't' || name[0] == 'T');
      } else if (name == "none" || name == "None") {
        constant->constant = Value(None{});
      } else {
        return make(ExprKind::Name, line, {}, name);
      }
      return constant;
    }
    case TokenKind::String: {
      std::string text;
      while (current().kind == TokenKind::String) text += take().text;  // neighbours join
      constant->constant = Value::text(text);
      return constant;
    }
    case TokenKind::Integer:
      if (!integer_value(current().text, integer)) fail(fmt::format("the number {} is out of range", current().text));
      take();
      constant->constant = Value(integer);
      return constant;
    case TokenKind::Float: {
      const std::string text = take().text;
      double value = 0;
      std::from_chars(text.data(), text.data() + text.size(), value);
      constant->constant = Value(value);
      return constant;
    }
    default:
      fail(fmt::format("unexpected {}", shown()));
      return nullptr;
  }
}

ExprPtr Parser::literal_list() {
  const int line = take().line;
  std::vector<ExprPtr> items;
  while (ok() && !current().is_operator("]")) {
    items.push_back(expression());
    if (!accept_operator(",")) break;
  }
  expect_operator("]");
  return make(ExprKind::List, line, std::move(items));
}

ExprPtr Parser::literal_dict() {
  const int line = take().line;
  std::vector<ExprPtr> items;
  while (ok() && !current().is_operator("}")) {
    items.push_back(expression());
    expect_operator(":");
    items.push_back(expression());
    if (!accept_operator(",")) break;
  }
  expect_operator("}");
  return make(ExprKind::Dict, line, std::move(items));
}

ExprPtr Parser::postfix(ExprPtr expr) {
  while (ok()) {
    if (current().is_operator(".") || current().is_operator("[")) {
      expr = subscript(std::move(expr));
    } else if (current().is_operator("(")) {
      ExprPtr call = make(ExprKind::Call, current().line, single(std::move(expr)));
      call_arguments(*call);
      expr = measured(std::move(call));
    } else {
      break;
    }
  }
  return expr;
}

ExprPtr Parser::filters_and_tests(ExprPtr expr) {
  while (ok()) {
    if (current().is_operator("|")) {
      expr = filters(std::move(expr), false);
    } else if (current().is_name("is")) {
      expr = test(std::move(expr));
    } else if (current().is_operator("(")) {
      ExprPtr call = make(ExprKind::Call, current().line, single(std::move(expr)));
      call_arguments(*call);
      expr = measured(std::move(call));
    } else {
      break;
    }
  }
  return expr;
}

// "|name(args)|name ..."; in a filter block the first name has no bar.
ExprPtr Parser::filters(ExprPtr input, bool first_is_bare) {
  bool bare = first_is_bare;
  while (ok() && (bare || current().is_operator("|"))) {
    if (!bare) take();
    bare = false;
    const int line = current().line;
    std::string called = name();
    while (accept_operator(".")) called += "." + name();
    ExprPtr filter = make(ExprKind::Filter, line, single(std::move(input)), called);
    if (current().is_operator("(")) call_arguments(*filter);
    input = measured(std::move(filter));
  }
  return input;
}

ExprPtr Parser::subscript(ExprPtr expr) {
  const Token opening = take();
  if (opening.text == ".") {
    if (current().kind == TokenKind::Integer) {
      ExprPtr index = primary();
      return make(ExprKind::Item, opening.line, pair(std::move(expr), std::move(index)));
    }
    return make(ExprKind::Attribute, opening.line, single(std::move(expr)), name());
  }
  std::vector<ExprPtr> indices;
  bool is_tuple = false;
  while (ok() && !current().is_operator("]")) {
    if (!indices.empty()) {  // unlike in other lists, no comma may come last
      expect_operator(",");
      is_tuple = true;
    }
    indices.push_back(subscript_index());
  }
  expect_operator("]");
  if (indices.empty()) fail("an empty subscript");
  if (!ok()) return nullptr;
  ExprPtr index = is_tuple ? make(ExprKind::Tuple, opening.line, std::move(indices)) : std::move(indices[0]);
  return make(ExprKind::Item, opening.line, pair(std::move(expr), std::move(index)));
}

ExprPtr Parser::subscript_index() {
  const int line = current().line;
  const auto part_ends = [&] {
    return current().is_operator(":") || current().is_operator("]") || current().is_operator(",");
  };
  ExprPtr begin = current().is_operator(":") ? nullptr : expression();
  if (!current().is_operator(":")) return begin;
  take();
  std::vector<ExprPtr> args = pair(std::move(begin), part_ends() ? nullptr : expression());
  args.push_back(accept_operator(":") && !part_ends() ? expression() : nullptr);
  return make(ExprKind::Slice, line, std::move(args));
}

ExprPtr Parser::test(ExprPtr expr) {
  const int line = take().line;
  const bool negated = accept_name("not");
  std::string called = name();
  while (accept_operator(".")) called += "." + name();
  ExprPtr out = make(ExprKind::Test, line, single(std::move(expr)), called);
  const Token& t = current();
  const bool argument = t.kind == TokenKind::String || t.kind == TokenKind::Integer || t.kind == TokenKind::Float ||
                        t.is_operator("[") || t.is_operator("{") ||
                        (t.kind == TokenKind::Name && !t.is_name("else") && !t.is_name("or") && !t.is_name("and"));
  if (t.is_operator("(")) {
    call_arguments(*out);
  } else if (argument) {
    if (t.is_name("is")) fail("tests cannot be chained with 'is'");
    out->args.push_back(postfix(primary()));
  }
  out = measured(std::move(out));
  return negated ? make(ExprKind::Not, line, single(std::move(out))) : std::move(out);
}

void Parser::call_arguments(Expr& call) {
  expect_operator("(");
  while (ok() && !current().is_operator(")")) {
    one_argument(call);
    if (!accept_operator(",")) break;
  }
  expect_operator(")");
}

void Parser::one_argument(Expr& call) {
  if (accept_operator("*")) {
    if (call.star_args || call.star_keywords) fail("an argument after *args or **kwargs");
    call.star_args = expression();
  } else if (accept_operator("**")) {
    if (call.star_keywords) fail("a second **kwargs");
    call.star_keywords = expression();
  } else if (current().kind == TokenKind::Name && ahead().is_operator("=")) {
    Keyword keyword{take().text, nullptr};
    take();
    keyword.value = expression();
    call.keywords.push_back(std::move(keyword));
  } else {
    if (!call.keywords.empty() || call.star_args || call.star_keywords) fail("a positional argument after others");
    call.args.push_back(expression());
  }
}

}  // namespace plumb::jinja
