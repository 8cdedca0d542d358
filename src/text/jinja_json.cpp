// tojson as Hugging Face defines it: Python's json.dumps without HTML escaping.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_interp.h"
#include "text/unicode.h"

namespace plumb::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Interp& in, int line) : in_(in), line_(line) {}

  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent{};
  std::string item_separator = ", ";
  std::string key_separator = ": ";

  void value(const Value& v, int level) {
    if (!in_.ok()) return;
    in_.charge(1, line_);
    if (out.size() > in_.limits().output_bytes) in_.fail(line_, "a text grows too long");
    const List* list = v.as_list();
    if (const TaintedText* text = v.as_text()) {
      string(*text);
    } else if (v.is_none()) {
      out.append("null");
    } else if (const auto* b = v.get<bool>()) {
      out.append(*b ? "true" : "false");
    } else if (const auto* i = v.get<Int>()) {
      out.append(int_str(*i));
    } else if (const auto* d = v.get<double>()) {
      out.append(number(*d));
    } else if (list && (list->kind == ListKind::List || list->kind == ListKind::Tuple)) {
      array(*list, level);
    } else if (const Dict* dict = v.as_dict()) {
      object(*dict, level);
    } else {
      in_.fail(line_, fmt::format("Object of type {} is not JSON serializable", v.type_name()));
    }
  }

  TextBuilder out{};

 private:
  static std::string number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return float_repr(d);
  }

  // The text that stands for a character, or nothing when it stands for itself.
  std::string escaped(char32_t c) const {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    if (c >= 0x20 && (c < 0x7F || !ensure_ascii)) return {};
    if (c < 0x10000) return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }

  void string(const TaintedText& text) {
    out.append("\"");
    size_t plain = 0;
    for (size_t i = 0; i < text.bytes.size();) {
      const utf8::Decoded d = utf8::decode(text.bytes, i);
      if (const std::string shown = escaped(d.code_point); !shown.empty()) {
        out.append(text, plain, i);
        out.append(shown, tainted(text, i, i + d.length));
        plain = i + d.length;
      }
      i += d.length;
    }
    out.append(text, plain, text.bytes.size());
    out.append("\"");
  }

  void line_break(int level) {
    if (!indent) return;
    out.append("\n");
    for (int i = 0; i < level; ++i) out.append(*indent);
  }

  void array(const List& list, int level) {
    out.append("[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out.append(item_separator);
      line_break(level + 1);
      value(list.items[i], level + 1);
    }
    if (!list.items.empty()) line_break(level);
    out.append("]");
  }

  TaintedText key_text(const Value& key) {
    if (key.is_none()) return {"null", {}};
    if (const auto* b = key.get<bool>()) return {*b ? "true" : "false", {}};
    if (const auto* d = key.get<double>()) return {number(*d), {}};
    if (!key.as_text() && !key.get<Int>())
      in_.fail(line_, fmt::format("keys must be str, int, float, bool or None, not {}", key.type_name()));
    return to_str(key);
  }

  void object(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (sort_keys)
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first).value_or(false); });
    out.append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out.append(item_separator);
      line_break(level + 1);
      string(key_text(entries[i]->first));
      out.append(key_separator);
      value(entries[i]->second, level + 1);
    }
    if (!entries.empty()) line_break(level);
    out.append("}");
  }

  Interp& in_;
  int line_;
};

}  // namespace

Value to_json(Interp& in, const Value& value, Args& args) {
  const auto bound = in.bind(args, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  if (!in.ok()) return {};
  JsonWriter writer(in, args.line);
  writer.ensure_ascii = bound[0] && truthy(*bound[0]);
  writer.sort_keys = bound[3] && truthy(*bound[3]);
  if (bound[1] && !bound[1]->is_none()) {
    const TaintedText* text = bound[1]->as_text();
    const Int width = bound[1]->as_int().value_or(-1);
    if (!text && (width < 0 || width > 100)) return in.fail(args.line, "tojson takes an indent from 0 to 100");
    writer.indent = text ? text->bytes : std::string(static_cast<size_t>(width), ' ');
    writer.item_separator = ",";
  }
  if (bound[2] && !bound[2]->is_none()) {
    const List* pair = bound[2]->as_list();
    if (!pair || pair->items.size() != 2 || !pair->items[0].as_text() || !pair->items[1].as_text())
      return in.fail(args.line, "tojson takes two separators");
    writer.item_separator = pair->items[0].as_text()->bytes;
    writer.key_separator = pair->items[1].as_text()->bytes;
  }
  writer.value(value, 0);
  return in.ok() ? in.make_text(std::move(writer.out), args.line) : Value();
}

}  // namespace plumb::jinja
