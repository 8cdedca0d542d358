// Calls: macros, global functions, methods, and what `loop` offers.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_interp.h"

namespace plumb::jinja {

Value Interp::call(const Value& callee, Args args) {
  const int line = args.line;
  const auto* callable = callee.get<CallablePtr>();
  if (callable == nullptr) {
    const auto* undefined = callee.get<Undefined>();
    if (undefined) return fail(line, undefined->hint ? *undefined->hint : "an undefined value is called");
    return fail(line, fmt::format("'{}' object is not callable", callee.type_name()));
  }
  charge(1, line);
  if (!ok()) return {};
  switch ((*callable)->kind) {
    case Callable::Kind::Macro:
      return call_macro(**callable, std::move(args));
    case Callable::Kind::Global:
      return call_global((*callable)->name, std::move(args));
    case Callable::Kind::Method:
      return call_method(**callable, std::move(args));
  }
  return {};
}

Value Interp::call_macro(const Callable& callee, Args args) {
  const Macro& macro = *callee.macro;
  const size_t count = macro.parameters.size();
  auto scope = std::make_shared<Scope>(Scope{{}, callee.scope});
  std::vector<Value> varargs;
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (i < count) {
      scope->set(macro.parameters[i], std::move(args.positional[i]));
    } else {
      varargs.push_back(std::move(args.positional[i]));
    }
  }
  if (!varargs.empty() && !macro.takes_varargs)
    return fail(args.line, fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, count));
  Dict kwargs;
  for (auto& [name, value] : args.keywords) {
    if (std::find(macro.parameters.begin(), macro.parameters.end(), name) != macro.parameters.end()) {
      if (scope->find(name))
        return fail(args.line, fmt::format("macro '{}' got two values for '{}'", macro.name, name));
      scope->set(name, std::move(value));
    } else if (macro.takes_kwargs) {
      kwargs.set(Value::text(name), std::move(value));
    } else {
      return fail(args.line, fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, name));
    }
  }
  if (macro.takes_varargs) scope->set("varargs", list_of(std::move(varargs), ListKind::Tuple, args.line));
  if (macro.takes_kwargs) scope->set("kwargs", dict_of(std::move(kwargs), args.line));
  // Defaults are evaluated at each call, in the macro's scope.
  const size_t first_default = count - macro.defaults.size();
  std::shared_ptr<Scope> caller = scope;
  std::swap(scope_, caller);
  for (size_t i = 0; i < count && ok(); ++i) {
    const std::string& name = macro.parameters[i];
    if (scope->find(name)) continue;
    scope->set(name, i >= first_default ? eval(*macro.defaults[i - first_default])
                                        : Value::undefined(fmt::format("parameter '{}' was not provided", name)));
  }
  std::swap(scope_, caller);
  if (++depth_ > limits_.depth) fail(args.line, "the template recurses too deeply");
  Value out = ok() ? capture(macro.body, scope, args.line) : Value();
  --depth_;
  return out;
}

Value Interp::new_namespace(const Args& args) {
  auto ns = std::make_shared<Namespace>();
  const int line = args.line;
  if (args.positional.size() > 1) return fail(line, "namespace() takes one mapping and keywords");
  for (const Value& positional : args.positional) {
    const Dict* dict = positional.as_dict();
    if (dict == nullptr) return fail(line, "namespace() takes a mapping");
    for (const auto& [key, value] : dict->entries) ns->set(to_str(key).bytes, value);
  }
  for (const auto& [name, value] : args.keywords) ns->set(name, value);
  if (ns->depth > limits_.value_depth) return fail(line, "values nest too deeply");
  namespaces_.push_back(ns);
  return Value(std::move(ns));
}

Value Interp::range(Args& args) {
  Int part[3] = {0, 0, 1};
  const size_t n = args.positional.size();
  if (n < 1 || n > 3 || !args.keywords.empty()) return fail(args.line, "range() takes one to three integers");
  for (size_t i = 0; i < n; ++i) {
    const auto value = args.positional[i].as_int();
    if (!value || *value > INT64_MAX || *value < INT64_MIN) return fail(args.line, "range() takes integers");
    part[n == 1 ? 1 : i] = *value;
  }
  const auto [begin, end, step] = part;
  if (step == 0) return fail(args.line, "range() with a step of zero");
  const bool empty = step > 0 ? begin >= end : begin <= end;
  const Int count = empty ? 0 : (step > 0 ? (end - begin + step - 1) / step : (begin - end - step - 1) / -step);
  if (count > limits_.range_items) return fail(args.line, fmt::format("a range of over {} items", limits_.range_items));
  std::vector<Value> items;
  for (Int i = 0; i < count; ++i) items.emplace_back(begin + i * step);
  return list_of(std::move(items), ListKind::Range, args.line);
}

Value Interp::call_global(const std::string& name, Args args) {
  const int line = args.line;
  if (name == "namespace") return new_namespace(args);
  if (name == "range") return range(args);
  if (name == "raise_exception") {
    const auto bound = bind(args, name, {"message"}, 1);
    return ok() ? fail(line, to_str(*bound[0]).bytes) : Value();
  }
  if (name == "strftime_now") {
    const auto bound = bind(args, name, {"format"}, 1);
    const TaintedText* format = ok() ? bound[0]->as_text() : nullptr;
    if (format == nullptr || format->bytes.size() > 256) return fail(line, "strftime_now() takes a short format");
    std::tm local{};
    localtime_r(&now_, &local);
    char buffer[4096];
    const size_t size = std::strftime(buffer, sizeof buffer, format->bytes.c_str(), &local);
    return make_text(TaintedText{std::string(buffer, size), {}}, line);
  }
  Dict out;  // dict()
  for (const Value& positional : args.positional) {
    if (positional.as_dict() == nullptr || args.positional.size() > 1) return fail(line, "dict() takes a mapping");
    out = *positional.as_dict();
  }
  for (auto& [key, value] : args.keywords) out.set(Value::text(key), std::move(value));
  return dict_of(std::move(out), line);
}

Value Interp::call_method(const Callable& callee, Args args) {
  const auto* loop = callee.self.get<LoopPtr>();
  if (loop == nullptr) return call_builtin_method(*this, callee.self, callee.name, std::move(args));
  if (callee.name == "cycle") {
    if (args.positional.empty()) return fail(args.line, "loop.cycle() without items");
    return args.positional[(*loop)->index % args.positional.size()];
  }
  std::vector<Value>& seen = (*loop)->changed;  // loop.changed()
  const bool same =
      std::equal(seen.begin(), seen.end(), args.positional.begin(), args.positional.end(), equal) && (*loop)->index > 0;
  seen = std::move(args.positional);
  return Value(!same);
}

Value Interp::loop_attribute(const LoopPtr& loop, std::string_view name, int line) {
  const auto number = [](size_t n) { return Value(static_cast<Int>(n)); };
  const size_t index = loop->index;
  if (name == "index0") return number(index);
  if (name == "index") return number(index + 1);
  if (name == "first") return Value(index == 0);
  if (name == "depth") return number(1);
  if (name == "depth0") return number(0);
  if (name == "last") return Value(!fill(*loop, index + 2));
  if (name == "previtem") return index > 0 ? loop->items[index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return fill(*loop, index + 2) ? loop->items[index + 1] : Value::undefined("there is no next item");
  if (name == "length" || name == "revindex" || name == "revindex0") {
    fill(*loop, loop->source.size());
    const size_t size = loop->items.size();
    return number(name == "length" ? size : size - index - (name == "revindex0" ? 1 : 0));
  }
  if (name == "cycle" || name == "changed") {
    Callable callable;
    callable.kind = Callable::Kind::Method;
    callable.name = std::string(name);
    callable.self = Value(loop);
    return Value(std::make_shared<const Callable>(std::move(callable)));
  }
  (void)line;
  return Value::undefined(fmt::format("loop has no attribute '{}'", name));
}

}  // namespace plumb::jinja
