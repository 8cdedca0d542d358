#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/jinja_parser_impl.h"

namespace plumb::jinja {

Token Parser::take() {
  Token token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

std::string Parser::shown() const {
  const Token& t = current();
  if (t.kind == TokenKind::End) return "the end of the template";
  if (t.kind == TokenKind::Data) return "text";
  return fmt::format("'{}'", t.text);
}

void Parser::fail(std::string_view message) {
  if (failed_) return;
  failed_ = true;
  error_ = template_error(current().line, message);
}

bool Parser::accept_operator(std::string_view text) {
  if (failed_ || !current().is_operator(text)) return false;
  take();
  return true;
}

bool Parser::accept_name(std::string_view text) {
  if (failed_ || !current().is_name(text)) return false;
  take();
  return true;
}

void Parser::expect_operator(std::string_view text) {
  if (!accept_operator(text)) fail(fmt::format("expected '{}', found {}", text, shown()));
}

void Parser::expect_name(std::string_view text) {
  if (!accept_name(text)) fail(fmt::format("expected '{}', found {}", text, shown()));
}

void Parser::end_of_tag() {
  if (failed_) return;
  if (current().kind != TokenKind::BlockEnd) fail(fmt::format("expected the end of the tag, found {}", shown()));
  take();
}

std::string Parser::name() {
  if (current().kind != TokenKind::Name) {
    fail(fmt::format("expected a name, found {}", shown()));
    return {};
  }
  return take().text;
}

Block Parser::block(std::initializer_list<std::string_view> ends) {
  Block out;
  if (++nesting_ > kMaxNesting) fail("blocks nest too deeply");
  while (ok() && current().kind != TokenKind::End) {
    auto stmt = std::make_unique<Stmt>();
    stmt->line = current().line;
    if (current().kind == TokenKind::Data) {
      stmt->kind = StmtKind::Data;
      stmt->data = take().text;
    } else if (current().kind == TokenKind::VariableBegin) {
      take();
      stmt->kind = StmtKind::Output;
      stmt->expr = tuple({});
      if (current().kind != TokenKind::VariableEnd) fail(fmt::format("expected '}}}}', found {}", shown()));
      take();
    } else {
      take();  // {%
      if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) break;
      stmt = statement();
    }
    if (stmt) out.push_back(std::move(stmt));
  }
  --nesting_;
  if (ok() && current().kind == TokenKind::End && ends.size() > 0)
    fail(fmt::format("expected '{}', found {}", *(ends.end() - 1), shown()));
  return out;
}

std::unique_ptr<Stmt> Parser::statement() {
  const int line = current().line;
  const std::string tag = name();
  if (tag == "if") return if_statement(line);
  if (tag == "for") return for_statement(line);
  if (tag == "set") return set_statement(line);
  if (tag == "macro") return macro_statement(line);
  if (tag == "with") return with_statement(line);
  if (tag == "filter") return filter_statement(line);
  if (tag == "break") return loop_control(line, StmtKind::Break);
  if (tag == "continue") return loop_control(line, StmtKind::Continue);
  if (tag == "generation") {  // marks the assistant's text for training; it renders as it is
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = StmtKind::Plain;
    stmt->line = line;
    end_of_tag();
    stmt->body = body_until("endgeneration");
    return stmt;
  }
  static constexpr std::array<std::string_view, 9> kRefused = {"include", "import",     "from", "extends", "block",
                                                               "call",    "autoescape", "do",   "trans"};
  const bool known = std::find(kRefused.begin(), kRefused.end(), tag) != kRefused.end();
  if (ok() && known) fail(fmt::format("the tag '{}' is not supported in chat templates", tag));
  if (ok()) fail(fmt::format("unknown tag '{}'", tag));
  return nullptr;
}

Block Parser::body_until(std::string_view end) {
  Block out = block({end});
  expect_name(end);
  end_of_tag();
  return out;
}

std::unique_ptr<Stmt> Parser::if_statement(int line) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::If;
  stmt->line = line;
  Stmt* last = stmt.get();
  int branches = 0;
  for (bool more = true; more && ok();) {
    last->expr = tuple({.conditional = false});
    end_of_tag();
    last->body = block({"elif", "else", "endif"});
    more = false;
    if (accept_name("elif")) {
      // An elif is an if within the else; many of them make a deep tree, which walking and freeing recurse over.
      if (++branches > kMaxTreeDepth) fail("too many elif branches");
      auto next = std::make_unique<Stmt>();
      next->kind = StmtKind::If;
      next->line = current().line;
      last->other.push_back(std::move(next));
      last = last->other.back().get();
      more = true;
    } else if (accept_name("else")) {
      end_of_tag();
      last->other = block({"endif"});
    }
  }
  expect_name("endif");
  end_of_tag();
  return stmt;
}

std::unique_ptr<Stmt> Parser::for_statement(int line) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::For;
  stmt->line = line;
  stmt->target = target(/*allow_member=*/false);
  expect_name("in");
  stmt->expr = tuple({.conditional = false});
  if (accept_name("if")) stmt->filter = expression();
  if (current().is_name("recursive")) fail("recursive loops are not supported");
  end_of_tag();
  ++loops_;
  stmt->body = block({"else", "endfor"});
  --loops_;
  if (accept_name("else")) {
    end_of_tag();
    stmt->other = block({"endfor"});
  }
  expect_name("endfor");
  end_of_tag();
  return stmt;
}

Target Parser::one_target(bool allow_member) {
  Target out;
  if (++nesting_ > kMaxNesting) fail("targets nest too deeply");
  if (accept_operator("(")) {
    out = target(allow_member);
    expect_operator(")");
  } else {
    out.name = name();
    if (allow_member && accept_operator(".")) out.member = name();
    for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"})
      if (out.name == reserved) fail(fmt::format("cannot assign to '{}'", reserved));
  }
  --nesting_;
  return out;
}

Target Parser::target(bool allow_member) {
  Target first = one_target(allow_member);
  if (!ok() || !current().is_operator(",")) return first;
  Target out;
  out.parts.push_back(std::move(first));
  while (ok() && accept_operator(",")) {
    if (current().is_name("in") || current().is_operator("=") || current().is_operator(")")) break;
    out.parts.push_back(one_target(allow_member));
  }
  return out;
}

std::unique_ptr<Stmt> Parser::set_statement(int line) {
  auto stmt = std::make_unique<Stmt>();
  stmt->line = line;
  stmt->target = target(/*allow_member=*/true);
  if (accept_operator("=")) {
    stmt->kind = StmtKind::Set;
    stmt->expr = tuple({});
    end_of_tag();
    return stmt;
  }
  stmt->kind = StmtKind::SetBlock;
  if (current().is_operator("|")) stmt->filter = filters(nullptr, /*first_is_bare=*/false);
  end_of_tag();
  stmt->body = body_until("endset");
  return stmt;
}

namespace {

bool uses(const Block& block, std::string_view name);

bool uses(const Expr* expr, std::string_view name) {
  if (expr == nullptr) return false;
  if (expr->kind == ExprKind::Name && expr->text == name) return true;
  const auto in = [&](const ExprPtr& e) { return uses(e.get(), name); };
  return std::any_of(expr->args.begin(), expr->args.end(), in) ||
         std::any_of(expr->keywords.begin(), expr->keywords.end(), [&](const Keyword& k) { return in(k.value); }) ||
         in(expr->star_args) || in(expr->star_keywords);
}

bool uses(const Block& block, std::string_view name) {
  return std::any_of(block.begin(), block.end(), [&](const std::unique_ptr<Stmt>& s) {
    return uses(s->expr.get(), name) || uses(s->filter.get(), name) || uses(s->body, name) || uses(s->other, name) ||
           std::any_of(s->values.begin(), s->values.end(), [&](const ExprPtr& e) { return uses(e.get(), name); });
  });
}

}  // namespace

std::unique_ptr<Stmt> Parser::macro_statement(int line) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::Macro;
  stmt->line = line;
  stmt->macro = std::make_unique<Macro>();
  Macro& macro = *stmt->macro;
  macro.line = line;
  macro.name = name();
  expect_operator("(");
  while (ok() && !current().is_operator(")")) {
    macro.parameters.push_back(name());
    if (accept_operator("=")) {
      macro.defaults.push_back(expression());
    } else if (!macro.defaults.empty()) {
      fail("a parameter without default after one with");
    }
    if (!accept_operator(",")) break;
  }
  expect_operator(")");
  end_of_tag();
  const int loops = loops_;
  loops_ = 0;
  macro.body = body_until("endmacro");
  loops_ = loops;
  macro.takes_varargs = uses(macro.body, "varargs");
  macro.takes_kwargs = uses(macro.body, "kwargs");
  if (uses(macro.body, "caller")) fail("macros with caller() are not supported");
  return stmt;
}

std::unique_ptr<Stmt> Parser::with_statement(int line) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::With;
  stmt->line = line;
  while (ok() && current().kind != TokenKind::BlockEnd) {
    stmt->names.push_back(one_target(/*allow_member=*/false));
    expect_operator("=");
    stmt->values.push_back(expression());
    if (!accept_operator(",")) break;
  }
  end_of_tag();
  stmt->body = body_until("endwith");
  return stmt;
}

std::unique_ptr<Stmt> Parser::filter_statement(int line) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::FilterBlock;
  stmt->line = line;
  stmt->filter = filters(nullptr, /*first_is_bare=*/true);
  end_of_tag();
  stmt->body = body_until("endfilter");
  return stmt;
}

std::unique_ptr<Stmt> Parser::loop_control(int line, StmtKind kind) {
  if (loops_ == 0) fail("'break' or 'continue' outside of a loop");
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = line;
  end_of_tag();
  return stmt;
}

Result<Template> parse_template(std::string_view source) {
  PLUMB_TRY(std::vector<Token> tokens, tokenize(source));
  Parser parser(std::move(tokens));
  Template out{parser.block({})};
  if (!parser.ok()) return parser.error();
  return out;
}

}  // namespace plumb::jinja
