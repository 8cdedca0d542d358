// Methods of dicts and lists; those of texts are in jinja_text_methods.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/jinja_interp.h"

namespace plumb::jinja {
namespace {

// Exist, and change their object: Jinja2's immutable sandbox, in which templates run, forbids them.
constexpr std::array<std::string_view, 6> kDictForbidden = {"clear",      "pop",    "popitem",
                                                            "setdefault", "update", "fromkeys"};
constexpr std::array<std::string_view, 8> kListForbidden = {"append", "clear",  "extend",  "insert",
                                                            "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 5> kDictMethods = {"items", "keys", "values", "get", "copy"};

template <size_t kSize>
bool among(const std::array<std::string_view, kSize>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value dict_method(Interp& in, const Dict& self, std::string_view name, Args& args) {
  if (name == "get") {
    const auto bound = in.bind(args, "get()", {"key", "default"}, 1);
    if (!in.ok()) return {};
    if (!key_of(*bound[0])) return in.fail(args.line, fmt::format("unhashable type: '{}'", bound[0]->type_name()));
    const Value* found = self.find(*bound[0]);
    if (found) return *found;
    return bound[1] ? *bound[1] : Value(None{});
  }
  in.bind(args, fmt::format("{}()", name), {});
  if (!in.ok()) return {};
  if (name == "copy") return in.dict_of(self, args.line);
  in.charge(static_cast<int64_t>(self.entries.size()), args.line);
  std::vector<Value> items;
  for (const auto& [key, value] : self.entries) {
    if (name == "items") {
      items.push_back(make_list({key, value}, ListKind::Tuple));
    } else {
      items.push_back(name == "keys" ? key : value);
    }
  }
  return make_list(std::move(items), ListKind::View, fmt::format("dict_{}", name));
}

Value list_method(Interp& in, const List& self, std::string_view name, Args& args) {
  if (name == "copy") return in.list_of(self.items, ListKind::List, args.line);
  const auto bound = in.bind(args, fmt::format("{}()", name), {"value"}, 1);
  if (!in.ok()) return {};
  in.charge(static_cast<int64_t>(self.items.size()), args.line);
  const auto is = [&](const Value& item) { return equal(item, *bound[0]); };
  if (name == "count") return Value(static_cast<Int>(std::count_if(self.items.begin(), self.items.end(), is)));
  const auto it = std::find_if(self.items.begin(), self.items.end(), is);
  if (it == self.items.end()) return in.fail(args.line, "index() of an item that is not in the list");
  return Value(static_cast<Int>(it - self.items.begin()));
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  if (object.as_text()) return find_text_method(name) != nullptr;
  if (object.as_dict()) return among(kDictMethods, name) || among(kDictForbidden, name);
  const List* list = object.as_list();
  if (list == nullptr) return false;
  const bool indexable = list->kind == ListKind::List || list->kind == ListKind::Tuple || list->kind == ListKind::Range;
  if (indexable && (name == "index" || name == "count")) return true;
  return list->kind == ListKind::List && (name == "copy" || among(kListForbidden, name));
}

Value call_builtin_method(Interp& in, const Value& self, std::string_view name, Args args) {
  if (const TaintedText* text = self.as_text()) {
    in.charge(static_cast<int64_t>(text->bytes.size() / 64), args.line);
    const TextMethod method = find_text_method(name);
    return in.ok() && method != nullptr ? method(in, *text, args) : Value();
  }
  const bool forbidden = self.as_dict() ? among(kDictForbidden, name) : among(kListForbidden, name);
  if (forbidden)
    return in.fail(args.line, fmt::format("'{}' would change a {}, which templates must not", name, self.type_name()));
  return self.as_dict() ? dict_method(in, *self.as_dict(), name, args) : list_method(in, *self.as_list(), name, args);
}

}  // namespace plumb::jinja
