// The two halves of the parser: expressions (jinja_parse_expr.cpp) and statements (jinja_parser.cpp).
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace plumb::jinja {

// Recursive descent with Jinja2's precedence. The first error sticks: parsing functions then return null or empty, and
// the token position no longer matters.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Statements up to a block tag that names one of `ends`, which is left as the current token (after "{%").
  Block block(std::initializer_list<std::string_view> ends);
  bool ok() const { return !failed_; }
  const Error& error() const { return error_; }
  bool at_end() const { return current().kind == TokenKind::End; }

 private:
  static constexpr int kMaxNesting = 100;    // brackets in brackets, blocks in blocks
  static constexpr int kMaxTreeDepth = 300;  // also counts long chains: a + b + c + ...

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool accept_operator(std::string_view text);
  bool accept_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  void end_of_tag();
  std::string name();
  void fail(std::string_view message);
  std::string shown() const;
  ExprPtr make(ExprKind kind, int line, std::vector<ExprPtr> args = {}, std::string text = {});
  ExprPtr measured(ExprPtr expr);

  // Expressions, loosest first.
  struct TupleRules {
    bool conditional = true;   // members may be `a if b else c`
    bool in_brackets = false;  // `()` is the empty tuple
  };
  ExprPtr tuple(const TupleRules& rules);
  ExprPtr expression();  // with inline if
  ExprPtr or_expression();
  ExprPtr and_expression();
  ExprPtr not_expression();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  ExprPtr literal_dict();
  ExprPtr literal_list();
  ExprPtr postfix(ExprPtr expr);
  ExprPtr filters_and_tests(ExprPtr expr);
  ExprPtr filters(ExprPtr input, bool first_is_bare);
  ExprPtr subscript(ExprPtr expr);
  ExprPtr subscript_index();
  ExprPtr test(ExprPtr expr);
  void call_arguments(Expr& call);
  void one_argument(Expr& call);
  bool tuple_ends() const;

  // Statements.
  std::unique_ptr<Stmt> statement();
  std::unique_ptr<Stmt> if_statement(int line);
  std::unique_ptr<Stmt> for_statement(int line);
  std::unique_ptr<Stmt> set_statement(int line);
  std::unique_ptr<Stmt> macro_statement(int line);
  std::unique_ptr<Stmt> with_statement(int line);
  std::unique_ptr<Stmt> filter_statement(int line);
  std::unique_ptr<Stmt> loop_control(int line, StmtKind kind);
  Target target(bool allow_member);
  Target one_target(bool allow_member);
  Block body_until(std::string_view end);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // open for loops: `break` needs one
  bool failed_ = false;
  Error error_{};
};

}  // namespace plumb::jinja
