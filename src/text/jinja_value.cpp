#include "text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/unicode.h"

namespace plumb::jinja {

Value Value::text(std::string_view trusted) { return text(TaintedText{std::string(trusted), {}}); }
Value Value::text(TaintedText text) { return Value(std::make_shared<const TaintedText>(std::move(text))); }
Value Value::undefined(std::string hint) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(hint))});
}

std::optional<Int> Value::as_int() const {
  if (const auto* i = get<Int>()) return *i;
  if (const auto* b = get<bool>()) return *b ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::as_number() const {
  if (const auto* d = get<double>()) return *d;
  if (const auto i = as_int()) return static_cast<double>(*i);
  return std::nullopt;
}

std::string_view Value::type_name() const {
  static constexpr std::string_view kNames[] = {"Undefined", "NoneType", "bool",      "int",      "float", "str",
                                                "list",      "dict",     "Namespace", "function", "loop"};
  if (const List* list = as_list(); list && list->kind != ListKind::List) {
    if (list->kind == ListKind::Tuple) return "tuple";
    if (list->kind == ListKind::Range) return "range";
    return list->kind == ListKind::Generator ? "generator" : std::string_view(list->view);
  }
  return kNames[data_.index()];
}

int Value::depth() const {
  if (const List* list = as_list()) return list->depth;
  if (const Dict* dict = as_dict()) return dict->depth;
  if (const auto* ns = get<NamespacePtr>()) return (*ns)->depth;
  if (const auto* callable = get<CallablePtr>()) return 1 + (*callable)->self.depth();
  return 0;
}

Value make_list(std::vector<Value> items, ListKind kind, std::string view) {
  auto list = std::make_shared<List>();
  list->kind = kind;
  list->view = std::move(view);
  for (const Value& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  list->items = std::move(items);
  return Value(std::move(list));
}

std::optional<std::string> key_of(const Value& v) {
  if (const TaintedText* text = v.as_text()) return "s" + text->bytes;
  if (const auto i = v.as_int()) return "n" + int_str(*i);
  if (const auto* d = v.get<double>()) {
    if (std::floor(*d) == *d && std::fabs(*d) < 1e18) return "n" + int_str(static_cast<Int>(*d));
    return "f" + float_repr(*d);
  }
  if (v.is_none()) return "none";
  if (v.is_undefined()) return "undefined";
  const List* list = v.as_list();
  if (list && (list->kind == ListKind::Tuple || list->kind == ListKind::Range)) {
    std::string out = list->kind == ListKind::Tuple ? "t" : "r";
    for (const Value& item : list->items) {
      const auto key = key_of(item);
      if (!key) return std::nullopt;
      out += fmt::format("{}:{}", key->size(), *key);
    }
    return out;
  }
  return std::nullopt;
}

bool Dict::set(const Value& key, Value value) {
  const auto canonical = key_of(key);
  if (!canonical) return false;
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  const auto [it, fresh] = index.emplace(*canonical, entries.size());
  if (fresh) {
    entries.emplace_back(key, std::move(value));
  } else {
    entries[it->second].second = std::move(value);
  }
  return true;
}

const Value* Dict::find(const Value& key) const {
  const auto canonical = key_of(key);
  const auto it = canonical ? index.find(*canonical) : index.end();
  return it == index.end() ? nullptr : &entries[it->second].second;
}

const Value* Dict::find(std::string_view key) const {
  const auto it = index.find("s" + std::string(key));
  return it == index.end() ? nullptr : &entries[it->second].second;
}

Value make_dict(Dict dict) { return Value(std::make_shared<const Dict>(std::move(dict))); }

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [key, value] : members)
    if (key == name) return &value;
  return nullptr;
}

void Namespace::set(std::string_view name, Value value) {
  depth = std::max(depth, value.depth() + 1);
  for (auto& [key, old] : members)
    if (key == name) {
      old = std::move(value);
      return;
    }
  members.emplace_back(std::string(name), std::move(value));
}

bool truthy(const Value& v) {
  if (v.is_undefined() || v.is_none()) return false;
  if (const auto* b = v.get<bool>()) return *b;
  if (const auto* i = v.get<Int>()) return *i != 0;
  if (const auto* d = v.get<double>()) return !(*d == 0);
  if (const TaintedText* text = v.as_text()) return !text->bytes.empty();
  if (const List* list = v.as_list()) return list->kind == ListKind::Generator || !list->items.empty();
  if (const Dict* dict = v.as_dict()) return !dict->entries.empty();
  return true;
}

std::optional<size_t> length(const Value& v) {
  if (v.is_undefined()) return 0;
  if (const TaintedText* text = v.as_text()) return utf8::count(text->bytes);
  if (const Dict* dict = v.as_dict()) return dict->entries.size();
  if (const List* list = v.as_list(); list && list->kind != ListKind::Generator) return list->items.size();
  return std::nullopt;
}

namespace {

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
    const Value* other = b.find(entry.first);
    return other != nullptr && equal(entry.second, *other);
  });
}

template <class T>
bool same(const Value& a, const Value& b) {
  const auto* x = a.get<T>();
  const auto* y = b.get<T>();
  return x != nullptr && y != nullptr && *x == *y;
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (const TaintedText* text = a.as_text()) return b.as_text() != nullptr && text->bytes == b.as_text()->bytes;
  if (const auto x = a.as_int()) {
    if (const auto y = b.as_int()) return *x == *y;
  }
  if (const auto x = a.as_number()) {
    const auto y = b.as_number();
    return y && *x == *y;
  }
  if (a.is_undefined()) return b.is_undefined();
  if (a.is_none()) return b.is_none();
  if (const List* x = a.as_list()) {
    const List* y = b.as_list();
    if (y == nullptr || x->kind != y->kind) return false;
    if (x->kind == ListKind::Generator) return x == y;
    return std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(), equal);
  }
  if (const Dict* x = a.as_dict()) return b.as_dict() != nullptr && equal_dicts(*x, *b.as_dict());
  return same<NamespacePtr>(a, b) || same<CallablePtr>(a, b) || same<LoopPtr>(a, b);
}

std::optional<bool> less(const Value& a, const Value& b) {
  if (const auto x = a.as_int()) {
    if (const auto y = b.as_int()) return *x < *y;
  }
  if (const auto x = a.as_number()) {
    const auto y = b.as_number();
    return y ? std::optional<bool>(*x < *y) : std::nullopt;
  }
  const TaintedText* s = a.as_text();
  const TaintedText* t = b.as_text();
  if (s && t) return s->bytes < t->bytes;  // UTF-8 sorts as its code points do
  const List* x = a.as_list();
  const List* y = b.as_list();
  const bool ordered = x && y && x->kind == y->kind && (x->kind == ListKind::List || x->kind == ListKind::Tuple);
  if (!ordered) return std::nullopt;
  for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i)
    if (!equal(x->items[i], y->items[i])) return less(x->items[i], y->items[i]);
  return x->items.size() < y->items.size();
}

std::string int_str(Int v) {
  if (v == 0) return "0";
  const bool negative = v < 0;
  std::string digits;
  while (v != 0) {
    const int digit = static_cast<int>(v % 10);
    digits += static_cast<char>('0' + (digit < 0 ? -digit : digit));
    v /= 10;
  }
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_repr(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[64];
  // Shortest digits that read back the same, as d.ddde[+-]xx; Python writes them plainly for exponents -4 to 15.
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific).ptr;
  const std::string_view all(buffer, static_cast<size_t>(end - buffer));
  const size_t e = all.find('e');
  int exponent = 0;
  const char* digits_of_exponent = all.data() + e + 1;
  if (*digits_of_exponent == '+') ++digits_of_exponent;
  std::from_chars(digits_of_exponent, end, exponent);
  if (exponent < -4 || exponent >= 16)
    return fmt::format("{}e{}{:02}", all.substr(0, e), exponent < 0 ? '-' : '+', std::abs(exponent));
  const auto plain = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::fixed).ptr;
  std::string out(buffer, plain);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

namespace {

Result<Value> container_from_json(const nlohmann::ordered_json& json, const FromJsonOptions& options) {
  const FromJsonOptions inner{options.tainted, options.max_depth - 1};
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (const auto& item : json) {
      PLUMB_TRY(Value value, from_json(item, inner));
      items.push_back(std::move(value));
    }
    return make_list(std::move(items));
  }
  Dict dict;
  for (const auto& [key, item] : json.items()) {
    if (!utf8::valid(key)) return Error{Code::Usage, "a key is not valid UTF-8", {}, {}};
    PLUMB_TRY(Value value, from_json(item, inner));
    TextBuilder name;
    name.append(key, options.tainted);
    dict.set(Value::text(name.take()), std::move(value));
  }
  return make_dict(std::move(dict));
}

}  // namespace

Result<Value> from_json(const nlohmann::ordered_json& json, const FromJsonOptions& options) {
  if (options.max_depth <= 0) return Error{Code::Usage, "the messages, tools or arguments nest too deeply", {}, {}};
  if (json.is_null()) return Value(None{});
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_unsigned()) return Value(static_cast<Int>(json.get<uint64_t>()));
  if (json.is_number_integer()) return Value(static_cast<Int>(json.get<int64_t>()));
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) {
    TextBuilder text;
    text.append(json.get_ref<const std::string&>(), options.tainted);
    if (!utf8::valid(json.get_ref<const std::string&>()))
      return Error{Code::Usage, "a text is not valid UTF-8", {}, {}};
    return Value::text(text.take());
  }
  if (json.is_array() || json.is_object()) return container_from_json(json, options);
  return Error{Code::Usage, "a value is neither of JSON's kinds", {}, {}};
}

}  // namespace plumb::jinja
