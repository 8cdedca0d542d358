// Filters on lists, dicts and what else can be iterated.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_interp.h"
#include "text/unicode.h"

namespace plumb::jinja {
namespace {

// "a.b.0" as Jinja2's attribute arguments mean it: each part an item, else an attribute.
Value path(Interp& in, const Value& object, const Value& attribute, int line) {
  const TaintedText* text = attribute.as_text();
  if (text == nullptr) return in.item(object, attribute, line);
  Value value = object;
  std::string_view rest = text->bytes;
  while (in.ok()) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const bool digits = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    value = in.item(value, digits ? Value(static_cast<Int>(std::stol(std::string(part)))) : Value::text(part), line);
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  return value;
}

// What a value is ordered by: its attribute if one was named, without regard to case unless asked.
Value sort_key(Interp& in, const Value& item, const std::optional<Value>& attribute, bool case_sensitive, int line) {
  Value key = attribute && !attribute->is_none() ? path(in, item, *attribute, line) : item;
  if (!case_sensitive && key.as_text()) return Value::text(TextOps::map(*key.as_text(), utf8::lower));
  return key;
}

// Stable; a comparison that Python refuses fails the render.
void sort_by_keys(Interp& in, std::vector<std::pair<Value, Value>>& keyed, bool reverse, int line) {
  const auto before = [&](const auto& a, const auto& b) {
    const auto is_less = reverse ? less(b.first, a.first) : less(a.first, b.first);
    if (!is_less) in.fail(line, fmt::format("cannot order '{}' and '{}'", a.first.type_name(), b.first.type_name()));
    return is_less.value_or(false);
  };
  // A failing comparison must not leave the order inconsistent while sorting: check neighbours' types first.
  for (size_t i = 1; i < keyed.size() && in.ok(); ++i) before(keyed[0], keyed[i]);
  if (in.ok()) std::stable_sort(keyed.begin(), keyed.end(), before);
}

Value sort(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "sort", {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound[1] && truthy(*bound[1]);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : in.items_of(input, args.line)) {
    Value key = sort_key(in, item, bound[2], case_sensitive, args.line);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  in.charge(static_cast<int64_t>(keyed.size()) * 16, args.line);
  if (in.ok()) sort_by_keys(in, keyed, bound[0] && truthy(*bound[0]), args.line);
  std::vector<Value> out;
  out.reserve(keyed.size());
  for (auto& entry : keyed) out.push_back(std::move(entry.second));
  return in.list_of(std::move(out), ListKind::List, args.line);
}

Value dictsort(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "dictsort", {"case_sensitive", "by", "reverse"});
  const Dict* dict = input.as_dict();
  if (dict == nullptr) return in.fail(args.line, "dictsort takes a mapping");
  const bool by_value = bound[1] && to_str(*bound[1]).bytes == "value";
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : dict->entries)
    keyed.emplace_back(sort_key(in, by_value ? value : key, std::nullopt, bound[0] && truthy(*bound[0]), args.line),
                       make_list({key, value}, ListKind::Tuple));
  in.charge(static_cast<int64_t>(keyed.size()) * 16, args.line);
  if (in.ok()) sort_by_keys(in, keyed, bound[2] && truthy(*bound[2]), args.line);
  std::vector<Value> out;
  out.reserve(keyed.size());
  for (auto& entry : keyed) out.push_back(std::move(entry.second));
  return in.list_of(std::move(out), ListKind::List, args.line);
}

template <bool kMax>
Value extreme(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, kMax ? "max" : "min", {"case_sensitive", "attribute"});
  const bool case_sensitive = bound[0] && truthy(*bound[0]);
  std::optional<Value> best;
  Value best_key;
  for (const Value& item : in.items_of(input, args.line)) {
    const Value key = sort_key(in, item, bound[1], case_sensitive, args.line);
    if (!in.ok()) return {};
    const bool better = !best || in.compare(kMax ? ">" : "<", key, best_key, args.line);
    if (!better) continue;
    best = item;
    best_key = key;
  }
  return best ? *best : Value::undefined("no aggregated item, the sequence was empty");
}

Value unique(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "unique", {"case_sensitive", "attribute"});
  Dict seen;
  std::vector<Value> out;
  for (const Value& item : in.items_of(input, args.line)) {
    const Value key = sort_key(in, item, bound[1], bound[0] && truthy(*bound[0]), args.line);
    if (!in.ok()) return {};
    if (seen.find(key) != nullptr) continue;
    if (!seen.set(key, Value(None{}))) return in.fail(args.line, fmt::format("unhashable type: '{}'", key.type_name()));
    out.push_back(item);
  }
  return in.list_of(std::move(out), ListKind::Generator, args.line);
}

Value sum(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "sum", {"attribute", "start"});
  Value total = bound[1] ? *bound[1] : Value(Int{0});
  for (const Value& item : in.items_of(input, args.line)) {
    const Value value = bound[0] && !bound[0]->is_none() ? path(in, item, *bound[0], args.line) : item;
    if (in.ok()) total = in.binary("+", total, value, args.line);
  }
  return total;
}

Value count(Interp& in, const Value& input, Args& args) {
  in.bind(args, "length", {});
  const auto size = length(input);
  if (!size) return in.fail(args.line, fmt::format("object of type '{}' has no len()", input.type_name()));
  if (input.as_text()) in.charge(static_cast<int64_t>(*size / 64), args.line);
  return Value(static_cast<Int>(*size));
}

Value first(Interp& in, const Value& input, Args& args) {
  in.bind(args, "first", {});
  const std::vector<Value> items = in.items_of(input, args.line);
  return items.empty() ? Value::undefined("no first item, the sequence was empty") : items.front();
}

Value last(Interp& in, const Value& input, Args& args) {
  in.bind(args, "last", {});
  if (const List* list = input.as_list(); list && list->kind == ListKind::Generator)
    return in.fail(args.line, "'generator' object is not reversible");
  const std::vector<Value> items = in.items_of(input, args.line);
  return items.empty() ? Value::undefined("no last item, the sequence was empty") : items.back();
}

Value list(Interp& in, const Value& input, Args& args) {
  in.bind(args, "list", {});
  return in.list_of(in.items_of(input, args.line), ListKind::List, args.line);
}

Value reverse(Interp& in, const Value& input, Args& args) {
  in.bind(args, "reverse", {});
  std::vector<Value> items = in.items_of(input, args.line);
  std::reverse(items.begin(), items.end());
  if (!input.as_text()) return in.list_of(std::move(items), ListKind::Generator, args.line);
  TextBuilder out;
  for (const Value& item : items) out.append(*item.as_text());
  return in.make_text(std::move(out), args.line);
}

Value join(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "join", {"d", "attribute"});
  const TaintedText separator = bound[0] ? to_str(*bound[0]) : TaintedText{};
  TextBuilder out;
  bool is_first = true;
  for (const Value& item : in.items_of(input, args.line)) {
    if (!is_first) out.append(separator);
    is_first = false;
    append_str(out, bound[1] && !bound[1]->is_none() ? path(in, item, *bound[1], args.line) : item);
    if (out.size() > in.limits().output_bytes) return in.fail(args.line, "a text grows too long");
    if (!in.ok()) return {};
  }
  return in.make_text(std::move(out), args.line);
}

Value items(Interp& in, const Value& input, Args& args) {
  in.bind(args, "items", {});
  if (input.is_undefined()) return in.list_of({}, ListKind::Generator, args.line);
  if (input.as_dict() == nullptr) return in.fail(args.line, "can only get item pairs from a mapping");
  std::vector<Value> out;
  for (const auto& [key, value] : input.as_dict()->entries) out.push_back(make_list({key, value}, ListKind::Tuple));
  return in.list_of(std::move(out), ListKind::Generator, args.line);
}

// What map and select go over: a false value is an empty sequence to them, even a number.
std::vector<Value> items_if_any(Interp& in, const Value& input, int line) {
  return truthy(input) ? in.items_of(input, line) : std::vector<Value>();
}

Value map(Interp& in, const Value& input, Args& args) {
  std::vector<Value> out;
  const auto attribute = std::find_if(args.keywords.begin(), args.keywords.end(),
                                      [](const auto& keyword) { return keyword.first == "attribute"; });
  if (args.positional.empty() && attribute != args.keywords.end()) {
    const auto bound = in.bind(args, "map", {"attribute", "default"});
    for (const Value& item : items_if_any(in, input, args.line)) {
      Value value = path(in, item, *bound[0], args.line);
      if (!in.ok()) return {};
      if (value.is_undefined() && bound[1]) value = *bound[1];
      out.push_back(std::move(value));
    }
    return in.list_of(std::move(out), ListKind::Generator, args.line);
  }
  if (args.positional.empty()) return in.fail(args.line, "map requires a filter argument");
  const std::string name = to_str(args.positional[0]).bytes;
  args.positional.erase(args.positional.begin());
  for (const Value& item : items_if_any(in, input, args.line)) {
    out.push_back(in.filter(name, item, args));
    if (!in.ok()) return {};
  }
  return in.list_of(std::move(out), ListKind::Generator, args.line);
}

template <bool kKeep, bool kByAttribute>
Value select(Interp& in, const Value& input, Args& args) {
  Value attribute;
  if (kByAttribute) {
    if (args.positional.empty()) return in.fail(args.line, "selectattr and rejectattr miss the attribute");
    attribute = args.positional[0];
    args.positional.erase(args.positional.begin());
  }
  std::optional<std::string> name;
  if (!args.positional.empty()) {
    name = to_str(args.positional[0]).bytes;
    args.positional.erase(args.positional.begin());
  }
  std::vector<Value> out;
  for (Value& item : items_if_any(in, input, args.line)) {
    const Value subject = kByAttribute ? path(in, item, attribute, args.line) : item;
    if (!in.ok()) return {};
    if ((name ? in.test(*name, subject, args) : truthy(subject)) == kKeep) out.push_back(std::move(item));
    if (!in.ok()) return {};
  }
  return in.list_of(std::move(out), ListKind::Generator, args.line);
}

Value batch(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "batch", {"linecount", "fill_with"}, 1);
  if (!in.ok()) return {};
  const Int size = bound[0]->as_int().value_or(0);
  if (size < 1 || size > in.limits().range_items) return in.fail(args.line, "batch takes a positive size");
  std::vector<Value> out;
  std::vector<Value> row;
  const auto flush = [&] { out.push_back(in.list_of(std::move(row), ListKind::List, args.line)); };
  for (Value& item : in.items_of(input, args.line)) {
    if (row.size() == static_cast<size_t>(size)) {
      flush();
      row = {};
    }
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    while (bound[1] && !bound[1]->is_none() && row.size() < static_cast<size_t>(size)) row.push_back(*bound[1]);
    flush();
  }
  return in.list_of(std::move(out), ListKind::Generator, args.line);
}

Value attr(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "attr", {"name"}, 1);
  if (!in.ok()) return {};
  // Only attributes proper, never items.
  if (input.as_dict() && !has_method(input, to_str(*bound[0]).bytes)) return Value::undefined("no such attribute");
  return in.attribute(input, to_str(*bound[0]).bytes, args.line);
}

}  // namespace

Filter find_sequence_filter(std::string_view name) {
  struct Entry {
    std::string_view name;
    Filter filter;
  };
  static constexpr Entry kFilters[] = {
      {"length", count},
      {"count", count},
      {"first", first},
      {"last", last},
      {"list", list},
      {"join", join},
      {"items", items},
      {"map", map},
      {"select", select<true, false>},
      {"reject", select<false, false>},
      {"selectattr", select<true, true>},
      {"rejectattr", select<false, true>},
      {"sort", sort},
      {"dictsort", dictsort},
      {"min", extreme<false>},
      {"max", extreme<true>},
      {"unique", unique},
      {"sum", sum},
      {"reverse", reverse},
      {"batch", batch},
      {"attr", attr},
  };
  for (const Entry& entry : kFilters)
    if (entry.name == name) return entry.filter;
  return nullptr;
}

Value Interp::filter(const std::string& name, const Value& input, Args args) {
  if (!ok()) return {};
  Filter found = find_text_filter(name);
  if (found == nullptr) found = find_sequence_filter(name);
  if (found == nullptr) return fail(args.line, fmt::format("no filter named '{}'", name));
  charge(1, args.line);
  Value out = found(*this, input, args);
  return ok() ? out : Value();
}

}  // namespace plumb::jinja
