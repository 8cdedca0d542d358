// Python's str() and repr() of values.
#include <fmt/format.h>
#include <utf8proc.h>

#include "text/jinja_value.h"
#include "text/unicode.h"

namespace plumb::jinja {
namespace {

// str.isprintable(): neither "other" nor a separator but the blank.
bool printable(char32_t c) {
  if (c == ' ') return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return !(category == UTF8PROC_CATEGORY_CN || category >= UTF8PROC_CATEGORY_ZS);
}

void append_text_repr(TextBuilder& out, const TaintedText& text) {
  const bool single = text.bytes.find('\'') != std::string::npos && text.bytes.find('"') == std::string::npos;
  const char quote = single ? '"' : '\'';
  out.append(std::string(1, quote));
  for (size_t i = 0; i < text.bytes.size();) {
    const utf8::Decoded d = utf8::decode(text.bytes, i);
    const char32_t c = d.code_point;
    std::string shown(text.bytes, i, d.length);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      shown.insert(0, "\\");
    } else if (c == '\n') {
      shown = "\\n";
    } else if (c == '\r') {
      shown = "\\r";
    } else if (c == '\t') {
      shown = "\\t";
    } else if (!printable(c)) {
      shown = c < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
              : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                            : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
    out.append(shown, tainted(text, i, i + d.length));
    i += d.length;
  }
  out.append(std::string(1, quote));
}

void append_list_repr(TextBuilder& out, const List& list) {
  switch (list.kind) {
    case ListKind::Generator:
      out.append("<generator object>");
      return;
    case ListKind::Range:
      if (list.items.empty()) {
        out.append("range(0, 0)");
      } else {
        const Int first = list.items.front().as_int().value_or(0);
        const Int step = list.items.size() > 1 ? list.items[1].as_int().value_or(0) - first : 1;
        const Int stop = list.items.back().as_int().value_or(0) + step;
        out.append(fmt::format("range({}, {}", int_str(first), int_str(stop)));
        out.append(step == 1 ? ")" : fmt::format(", {})", int_str(step)));
      }
      return;
    default:
      break;
  }
  const bool tuple = list.kind == ListKind::Tuple;
  if (list.kind == ListKind::View) out.append(list.view + "(");
  out.append(tuple ? "(" : "[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(out, list.items[i]);
  }
  if (tuple && list.items.size() == 1) out.append(",");
  out.append(tuple ? ")" : "]");
  if (list.kind == ListKind::View) out.append(")");
}

}  // namespace

void append_repr(TextBuilder& out, const Value& v) {
  if (const TaintedText* text = v.as_text()) {
    append_text_repr(out, *text);
  } else if (const List* list = v.as_list()) {
    append_list_repr(out, *list);
  } else if (const Dict* dict = v.as_dict()) {
    out.append("{");
    for (size_t i = 0; i < dict->entries.size(); ++i) {
      if (i > 0) out.append(", ");
      append_repr(out, dict->entries[i].first);
      out.append(": ");
      append_repr(out, dict->entries[i].second);
    }
    out.append("}");
  } else if (v.is_undefined()) {
    out.append("Undefined");
  } else {
    append_str(out, v);
  }
}

void append_str(TextBuilder& out, const Value& v) {
  if (const TaintedText* text = v.as_text()) {
    out.append(*text);
  } else if (v.is_undefined()) {
    return;
  } else if (v.is_none()) {
    out.append("None");
  } else if (const auto* b = v.get<bool>()) {
    out.append(*b ? "True" : "False");
  } else if (const auto* i = v.get<Int>()) {
    out.append(int_str(*i));
  } else if (const auto* d = v.get<double>()) {
    out.append(float_repr(*d));
  } else if (v.as_list() != nullptr || v.as_dict() != nullptr) {
    append_repr(out, v);
  } else {
    out.append(fmt::format("<{}>", v.type_name()));
  }
}

TaintedText to_str(const Value& v) {
  if (const TaintedText* text = v.as_text()) return *text;
  TextBuilder out;
  append_str(out, v);
  return out.take();
}

}  // namespace plumb::jinja
