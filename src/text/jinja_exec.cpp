#include <fmt/format.h>

#include "text/jinja_interp.h"
#include "text/jinja_lexer.h"

namespace plumb::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const auto& [key, value] : names)
    if (key == name) return &value;
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : names)
    if (key == name) {
      old = std::move(value);
      return;
    }
  names.emplace_back(std::string(name), std::move(value));
}

Interp::~Interp() {
  for (const auto& scope : captured_) scope->names.clear();
  for (const auto& ns : namespaces_) ns->members.clear();
}

Result<TaintedText> Interp::run(const Template& program) {
  TextBuilder out;
  out_ = &out;
  exec(program.body);
  out_ = nullptr;
  if (error_) return *error_;
  return out.take();
}

void Interp::write(const TaintedText& text, int line) {
  out_->append(text);
  if (out_->size() > limits_.output_bytes)
    fail(line, fmt::format("the rendered text exceeds {} bytes", limits_.output_bytes));
}

Interp::Flow Interp::exec(const Block& block) {
  for (const auto& stmt : block) {
    const Flow flow = exec(*stmt);
    if (flow != Flow::Normal || !ok()) return flow;
  }
  return Flow::Normal;
}

Interp::Flow Interp::exec(const Stmt& stmt) {
  charge(1, stmt.line);
  if (++depth_ > limits_.depth) fail(stmt.line, "the template recurses too deeply");
  Flow flow = Flow::Normal;
  if (ok()) {
    switch (stmt.kind) {
      case StmtKind::Data:
        out_->append(stmt.data);
        write({}, stmt.line);
        break;
      case StmtKind::Output: {
        const Value value = eval(*stmt.expr);
        if (ok()) write(to_str(value), stmt.line);
        break;
      }
      case StmtKind::If:
        flow = exec_if(stmt);
        break;
      case StmtKind::For:
        flow = exec_for(stmt);
        break;
      case StmtKind::Set: {
        Value value = eval(*stmt.expr);
        if (ok()) assign(stmt.target, std::move(value), stmt.line);
        break;
      }
      case StmtKind::SetBlock: {
        Value text = capture(stmt.body, std::make_shared<Scope>(Scope{{}, scope_}), stmt.line);
        if (ok()) text = filtered(stmt.filter.get(), text);
        if (ok()) assign(stmt.target, std::move(text), stmt.line);
        break;
      }
      case StmtKind::Macro:
        exec_macro(stmt);
        break;
      case StmtKind::FilterBlock: {
        Value text = capture(stmt.body, std::make_shared<Scope>(Scope{{}, scope_}), stmt.line);
        if (ok()) text = filtered(stmt.filter.get(), text);
        if (ok()) write(to_str(text), stmt.line);
        break;
      }
      case StmtKind::With:
        flow = exec_with(stmt);
        break;
      case StmtKind::Plain:
        flow = exec(stmt.body);
        break;
      case StmtKind::Break:
        flow = Flow::Break;
        break;
      case StmtKind::Continue:
        flow = Flow::Continue;
        break;
    }
  }
  --depth_;
  return flow;
}

Interp::Flow Interp::exec_if(const Stmt& first) {
  const Stmt* stmt = &first;
  while (true) {
    const bool condition = truthy(eval(*stmt->expr));
    if (!ok()) return Flow::Normal;
    if (condition) return exec(stmt->body);
    // An elif is an if alone in the else: followed in a loop, since chains are long.
    if (stmt->other.size() != 1 || stmt->other[0]->kind != StmtKind::If) return exec(stmt->other);
    stmt = stmt->other[0].get();
    charge(1, stmt->line);
  }
}

Interp::Flow Interp::exec_scoped(const Block& block, std::shared_ptr<Scope> scope) {
  std::swap(scope_, scope);
  const Flow flow = exec(block);
  std::swap(scope_, scope);
  return flow;
}

Value Interp::capture(const Block& block, std::shared_ptr<Scope> scope, int line) {
  TextBuilder captured;
  TextBuilder* outer = out_;
  out_ = &captured;
  exec_scoped(block, std::move(scope));
  out_ = outer;
  return ok() ? make_text(std::move(captured), line) : Value();
}

Value Interp::filtered(const Expr* filters, const Value& input) {
  return filters == nullptr ? input : eval_filter(*filters, &input);
}

// Lets at least `count` items pass the filter, if there are as many.
bool Interp::fill(Loop& loop, size_t count) {
  while (ok() && loop.items.size() < count && loop.next < loop.source.size()) {
    Value candidate = loop.source[loop.next++];
    const Expr* filter = loop.statement->filter.get();
    bool passes = true;
    if (filter != nullptr) {
      auto scope = std::make_shared<Scope>(Scope{{}, loop.outer});
      std::swap(scope_, scope);
      assign(loop.statement->target, candidate, loop.statement->line);
      passes = truthy(eval(*filter));
      std::swap(scope_, scope);
    }
    if (passes) loop.items.push_back(std::move(candidate));
  }
  return ok() && loop.items.size() >= count;
}

Interp::Flow Interp::exec_for(const Stmt& stmt) {
  const Value iterable = eval(*stmt.expr);
  if (!ok()) return Flow::Normal;
  auto loop = std::make_shared<Loop>();
  loop->source = items_of(iterable, stmt.line);
  loop->statement = &stmt;
  loop->outer = scope_;
  bool completed = false;  // Jinja2 runs the else part unless an iteration reached the end of the body
  for (; fill(*loop, loop->index + 1); ++loop->index) {
    auto scope = std::make_shared<Scope>(Scope{{}, loop->outer});
    charge(4, stmt.line);
    scope->set("loop", Value(loop));
    std::swap(scope_, scope);
    assign(stmt.target, loop->items[loop->index], stmt.line);
    const Flow flow = ok() ? exec(stmt.body) : Flow::Normal;
    std::swap(scope_, scope);
    if (!ok()) return Flow::Normal;
    if (flow == Flow::Break) break;
    completed = completed || flow == Flow::Normal;
  }
  if (!completed && ok()) return exec_scoped(stmt.other, std::make_shared<Scope>(Scope{{}, scope_}));
  return Flow::Normal;
}

Interp::Flow Interp::exec_with(const Stmt& stmt) {
  auto scope = std::make_shared<Scope>(Scope{{}, scope_});
  std::vector<Value> values;
  for (const ExprPtr& value : stmt.values) values.push_back(eval(*value));
  if (!ok()) return Flow::Normal;
  for (size_t i = 0; i < values.size(); ++i) scope->set(stmt.names[i].name, std::move(values[i]));
  return exec_scoped(stmt.body, std::move(scope));
}

void Interp::exec_macro(const Stmt& stmt) {
  auto callable = std::make_shared<Callable>();
  callable->kind = Callable::Kind::Macro;
  callable->name = stmt.macro->name;
  callable->macro = stmt.macro.get();
  callable->scope = scope_;
  if (!scope_->captured) captured_.push_back(scope_);
  scope_->captured = true;
  scope_->set(stmt.macro->name, Value(CallablePtr(std::move(callable))));
}

void Interp::assign(const Target& target, Value value, int line) {
  if (!target.parts.empty()) {
    std::vector<Value> parts = items_of(value, line);
    if (!ok()) return;
    if (parts.size() != target.parts.size()) {
      fail(line, fmt::format("{} values to unpack, expected {}", parts.size(), target.parts.size()));
      return;
    }
    for (size_t i = 0; i < parts.size() && ok(); ++i) assign(target.parts[i], std::move(parts[i]), line);
    return;
  }
  if (target.member.empty()) {
    scope_->set(target.name, std::move(value));
    return;
  }
  const Value* found = nullptr;
  for (const Scope* scope = scope_.get(); scope != nullptr && found == nullptr; scope = scope->parent.get())
    found = scope->find(target.name);
  const NamespacePtr* ns = found != nullptr ? found->get<NamespacePtr>() : nullptr;
  if (ns == nullptr) {
    fail(line, "cannot assign attribute on non-namespace object");
    return;
  }
  if (value.depth() >= limits_.value_depth) {
    fail(line, "values nest too deeply");
    return;
  }
  (*ns)->set(target.member, std::move(value));
}

}  // namespace plumb::jinja
