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
  const Int step = parts[2].value_or(1);
  if (step == 0) return fail(line, "slice step cannot be zero");
  const TaintedText* text = object.as_text();
  const List* list = object.as_list();
  const bool sliceable = text || (list && list->kind != ListKind::Generator && list->kind != ListKind::View);
  if (const auto* undefined = object.get<Undefined>(); undefined && undefined->hint)
    return fail(line, *undefined->hint);
  if (!sliceable) return fail(line, fmt::format("'{}' object cannot be sliced", object.type_name()));
  const std::vector<size_t> bounds = text ? TextOps::boundaries(text->bytes) : std::vector<size_t>();
  const auto size = static_cast<Int>(text ? bounds.size() - 1 : list->items.size());
  charge(static_cast<int64_t>(size / 16), line);
  // Python's rules: negative counts from the end; then clamped to what a walk in the step's direction can reach.
  const auto clamp = [&](std::optional<Int> part, Int otherwise) {
    if (!part) return otherwise;
    const Int at = *part < 0 ? *part + size : *part;
    return std::clamp<Int>(at, step < 0 ? -1 : 0, step < 0 ? size - 1 : size);
  };
  const Int begin = clamp(parts[0], step < 0 ? size - 1 : 0);
  const Int end = clamp(parts[1], step < 0 ? -1 : size);
  if (text && step == 1) {
    if (begin >= end) return Value::text("");
    return make_text(plumb::slice(*text, bounds[static_cast<size_t>(begin)], bounds[static_cast<size_t>(end)]), line);
  }
  TextBuilder characters;
  std::vector<Value> items;
  for (Int i = begin; step > 0 ? i < end : i > end;) {
    const auto at = static_cast<size_t>(i);
    if (text) {
      characters.append(*text, bounds[at], bounds[at + 1]);
    } else {
      items.push_back(list->items[at]);
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return text ? make_text(std::move(characters), line) : list_of(std::move(items), list->kind, line);
}

}  // namespace plumb::jinja
