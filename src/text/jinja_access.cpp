// object.name, object[key] and object[begin:end:step].
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_interp.h"
#include "text/unicode.h"

namespace plumb::jinja {
namespace {

Value bound_method(const Value& object, std::string_view name) {
  Callable callable;
  callable.kind = Callable::Kind::Method;
  callable.name = std::string(name);
  callable.self = object;
  return Value(std::make_shared<const Callable>(std::move(callable)));
}

// The `index`th element of `size`, negative ones from the end; nullopt when there is none.
std::optional<size_t> position(Int index, size_t size) {
  if (index < 0) index += static_cast<Int>(size);
  if (index < 0 || index >= static_cast<Int>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

std::optional<Value> element(const Value& object, const Value& key) {
  if (const Dict* dict = object.as_dict()) {
    const Value* found = dict->find(key);
    return found ? std::optional<Value>(*found) : std::nullopt;
  }
  const auto index = key.as_int();
  if (!index) return std::nullopt;
  if (const List* list = object.as_list(); list && list->kind != ListKind::Generator && list->kind != ListKind::View) {
    const auto at = position(*index, list->items.size());
    return at ? std::optional<Value>(list->items[*at]) : std::nullopt;
  }
  if (const TaintedText* text = object.as_text()) {
    const std::vector<size_t> bounds = TextOps::boundaries(text->bytes);
    const auto at = position(*index, bounds.size() - 1);
    if (at) return Value::text(plumb::slice(*text, bounds[*at], bounds[*at + 1]));
  }
  return std::nullopt;
}

std::string missing(const Value& object, const Value& key) {
  if (key.as_text()) return fmt::format("'{} object' has no attribute '{}'", object.type_name(), key.as_text()->bytes);
  return fmt::format("{} object has no element {}", object.type_name(), to_str(key).bytes);
}

}  // namespace

// Attributes of the object itself come before its items, as in Jinja2: `message.items` is the method.
Value Interp::attribute(const Value& object, std::string_view name, int line) {
  if (const auto* undefined = object.get<Undefined>())
    return fail(line, undefined->hint ? *undefined->hint : fmt::format("undefined has no attribute '{}'", name));
  if (const auto* ns = object.get<NamespacePtr>()) {
    const Value* found = (*ns)->find(name);
    return found ? *found : Value::undefined(missing(object, Value::text(name)));
  }
  if (const auto* loop = object.get<LoopPtr>()) return loop_attribute(*loop, name, line);
  if (const auto* callable = object.get<CallablePtr>(); callable && name == "name")
    return Value::text((*callable)->name);
  if (has_method(object, name)) return bound_method(object, name);
  const Value key = Value::text(name);
  if (const auto found = element(object, key)) return *found;
  return Value::undefined(missing(object, key));
}

// Items come before attributes here.
Value Interp::item(const Value& object, const Value& key, int line) {
  if (const auto* undefined = object.get<Undefined>())
    return fail(line, undefined->hint ? *undefined->hint : "an undefined value has no items");
  if (object.as_text()) charge(static_cast<int64_t>(object.as_text()->bytes.size() / 64), line);
  if (const auto found = element(object, key)) return *found;
  const TaintedText* name = key.as_text();
  if (name != nullptr && object.as_dict() == nullptr) return attribute(object, name->bytes, line);
  if (name != nullptr && has_method(object, name->bytes)) return bound_method(object, name->bytes);
  return Value::undefined(missing(object, key));
}

namespace {

// Python's rules for the bounds of a slice over `size` items: negative counts from the end; then clamped to what a walk
// in the step's direction can reach.
struct SliceWalk {
  Int begin, end, step;
  SliceWalk(const std::optional<Int> (&parts)[3], Int size) : step(parts[2].value_or(1)) {
    const auto clamp = [&](std::optional<Int> part, Int otherwise) {
      if (!part) return otherwise;
      const Int at = *part < 0 ? *part + size : *part;
      return std::clamp<Int>(at, step < 0 ? -1 : 0, step < 0 ? size - 1 : size);
    };
    begin = clamp(parts[0], step < 0 ? size - 1 : 0);
    end = clamp(parts[1], step < 0 ? -1 : size);
  }
  // f(index) for each item on the way.
  template <class F>
  void each(F&& f) const {
    for (Int i = begin; step > 0 ? i < end : i > end;) {
      f(static_cast<size_t>(i));
      if (__builtin_add_overflow(i, step, &i)) break;
    }
  }
};

}  // namespace

Value Interp::slice(const Value& object, const Expr& range) {
  const int line = range.line;
  std::optional<Int> parts[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!range.args[i]) continue;
    const Value value = eval(*range.args[i]);
    if (!ok()) return {};
    if (value.is_none()) continue;
    parts[i] = value.as_int();
    if (!parts[i]) return fail(line, "slice indices must be integers or None");
  }
  if (parts[2] == Int{0}) return fail(line, "slice step cannot be zero");
  if (const auto* undefined = object.get<Undefined>(); undefined && undefined->hint)
    return fail(line, *undefined->hint);
  if (const TaintedText* text = object.as_text()) {
    const std::vector<size_t> bounds = TextOps::boundaries(text->bytes);
    const SliceWalk walk(parts, static_cast<Int>(bounds.size() - 1));
    charge(static_cast<int64_t>(bounds.size() / 16), line);
    if (walk.step == 1) {
      if (walk.begin >= walk.end) return Value::text("");
      return make_text(
          plumb::slice(*text, bounds[static_cast<size_t>(walk.begin)], bounds[static_cast<size_t>(walk.end)]), line);
    }
    TextBuilder characters;
    walk.each([&](size_t at) { characters.append(*text, bounds[at], bounds[at + 1]); });
    return make_text(std::move(characters), line);
  }
  const List* list = object.as_list();
  if (list == nullptr || list->kind == ListKind::Generator || list->kind == ListKind::View)
    return fail(line, fmt::format("'{}' object cannot be sliced", object.type_name()));
  charge(static_cast<int64_t>(list->items.size() / 16), line);
  std::vector<Value> items;
  SliceWalk(parts, static_cast<Int>(list->items.size())).each([&](size_t at) { items.push_back(list->items[at]); });
  return list_of(std::move(items), list->kind, line);
}

}  // namespace plumb::jinja
