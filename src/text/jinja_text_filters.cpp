// Filters on single values: texts, numbers, defaults.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_interp.h"
#include "text/unicode.h"

namespace plumb::jinja {
namespace {

template <std::string (*kMap)(char32_t)>
Value mapped(Interp& in, const Value& input, Args& args) {
  in.bind(args, "the filter", {});
  return in.make_text(TextOps::map(to_str(input), kMap), args.line);
}

Value capitalize(Interp& in, const Value& input, Args& args) {
  in.bind(args, "capitalize", {});
  return in.make_text(TextOps::capitalize(to_str(input)), args.line);
}

// Jinja2's own: words begin after blanks and opening brackets, and a word's rest is lower case.
Value title(Interp& in, const Value& input, Args& args) {
  in.bind(args, "title", {});
  const TaintedText text = to_str(input);
  TextBuilder out;
  bool begins = true;
  for (size_t i = 0; i < text.bytes.size();) {
    const utf8::Decoded d = utf8::decode(text.bytes, i);
    const char32_t c = d.code_point;
    const bool separator = utf8::is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    const bool mark = tainted(text, i, i + d.length);
    out.append(begins && !separator ? utf8::upper(c) : utf8::lower(c), mark);
    begins = separator;
    i += d.length;
  }
  return in.make_text(std::move(out), args.line);
}

Value trim(Interp& in, const Value& input, Args& args) {
  auto bound = in.bind(args, "trim", {"chars"});
  if (bound[0] && bound[0]->is_none()) bound[0].reset();
  if (bound[0] && !bound[0]->as_text()) return in.fail(args.line, "trim takes a string of characters");
  return in.make_text(TextOps::strip(to_str(input), bound[0], true, true), args.line);
}

Value replace(Interp& in, const Value& input, Args& args) {
  auto bound = in.bind(args, "replace", {"old", "new", "count"}, 2);
  if (!in.ok()) return {};
  Args method;
  method.line = args.line;
  method.positional = {Value::text(to_str(*bound[0])), Value::text(to_str(*bound[1]))};
  if (bound[2] && !bound[2]->is_none()) method.positional.push_back(*bound[2]);
  return find_text_method("replace")(in, to_str(input), method);
}

Value string(Interp& in, const Value& input, Args& args) {
  in.bind(args, "string", {});
  return in.make_text(to_str(input), args.line);
}

Value escape(Interp& in, const Value& input, Args& args) {
  in.bind(args, "escape", {});
  const TaintedText text = to_str(input);
  TextBuilder out;
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    const char c = text.bytes[i];
    const std::string_view shown = c == '&'    ? "&amp;"
                                   : c == '<'  ? "&lt;"
                                   : c == '>'  ? "&gt;"
                                   : c == '\'' ? "&#39;"
                                   : c == '"'  ? "&#34;"
                                               : std::string_view(&c, 1);
    out.append(shown, tainted(text, i, i + 1));
  }
  return in.make_text(std::move(out), args.line);
}

Value indent(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "indent", {"width", "first", "blank"});
  if (!in.ok()) return {};
  TaintedText prefix;
  if (bound[0] && bound[0]->as_text()) {
    prefix = *bound[0]->as_text();
  } else {
    const Int width = bound[0] ? bound[0]->as_int().value_or(-1) : 4;
    if (width < 0 || width > 1000) return in.fail(args.line, "indent takes a width or a string");
    prefix.bytes = std::string(static_cast<size_t>(width), ' ');
  }
  const bool first = bound[1] && truthy(*bound[1]);
  const bool blank = bound[2] && truthy(*bound[2]);
  if (input.as_text() == nullptr)
    return in.fail(args.line, fmt::format("indent takes a string, not '{}'", input.type_name()));
  const TaintedText& text = *input.as_text();
  TextBuilder out;
  for (size_t begin = 0, line = 0; begin <= text.bytes.size(); ++line) {
    const size_t newline = text.bytes.find('\n', begin);
    const size_t end = newline == std::string::npos ? text.bytes.size() : newline;
    if (line > 0) out.append("\n");
    if (line == 0 ? first : (blank || end > begin)) out.append(prefix);
    out.append(text, begin, end);
    if (out.size() > in.limits().output_bytes) return in.fail(args.line, "a text grows too long");
    begin = end + 1;
  }
  return in.make_text(std::move(out), args.line);
}

Value default_value(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "default", {"default_value", "boolean"});
  const bool boolean = bound[1] && truthy(*bound[1]);
  if (!input.is_undefined() && !(boolean && !truthy(input))) return input;
  return bound[0] ? *bound[0] : Value::text("");
}

// Python's int(text) and float(text): blanks around, underscores between digits.
std::string number_text(const TaintedText& text) {
  std::string s = TextOps::strip(text, std::nullopt, true, true).bytes;
  for (size_t i = 1; i + 1 < s.size();)
    if (s[i] == '_' && std::isdigit(static_cast<unsigned char>(s[i - 1])) &&
        std::isdigit(static_cast<unsigned char>(s[i + 1]))) {
      s.erase(i, 1);
    } else {
      ++i;
    }
  if (s.starts_with('+') && s.size() > 1 && s[1] != '-') s.erase(0, 1);
  return s;
}

std::optional<Int> parse_int(const std::string& s, int base) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value, base);
  if (s.empty() || error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_float(const std::string& s) {
  double value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (s.empty() || end != s.data() + s.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return std::strtod(s.c_str(), nullptr);
  return error == std::errc() ? std::optional<double>(value) : std::nullopt;
}

Value float_to_int(double d, const Value& otherwise) {
  if (!(std::fabs(d) < 1e36)) return otherwise;  // also NaN
  return Value(static_cast<Int>(d));
}

Value to_int(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "int", {"default", "base"});
  Value otherwise = bound[0] ? *bound[0] : Value(Int{0});
  const Int base = bound[1] ? bound[1]->as_int().value_or(10) : 10;
  if (base < 2 || base > 36) return in.fail(args.line, "int takes a base from 2 to 36");
  if (input.is_undefined()) return in.fail(args.line, "int takes no undefined value");
  if (const auto i = input.as_int()) return Value(*i);
  if (const auto* d = input.get<double>()) return float_to_int(*d, otherwise);
  if (const TaintedText* text = input.as_text()) {
    std::string s = number_text(*text);
    if (base == 16 && (s.starts_with("0x") || s.starts_with("0X"))) s.erase(0, 2);
    if (const auto i = parse_int(s, static_cast<int>(base))) return Value(*i);
    if (const auto d = parse_float(s)) return float_to_int(*d, otherwise);
  }
  return otherwise;
}

Value to_float(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "float", {"default"});
  if (input.is_undefined()) return in.fail(args.line, "float takes no undefined value");
  if (const auto d = input.as_number()) return Value(*d);
  if (const TaintedText* text = input.as_text())
    if (const auto d = parse_float(number_text(*text))) return Value(*d);
  return bound[0] ? *bound[0] : Value(0.0);
}

Value absolute(Interp& in, const Value& input, Args& args) {
  in.bind(args, "abs", {});
  if (const auto* d = input.get<double>()) return Value(std::fabs(*d));
  if (const auto i = input.as_int()) return *i < 0 ? in.binary("-", Value(Int{0}), Value(*i), args.line) : Value(*i);
  return in.fail(args.line, fmt::format("bad operand type for abs(): '{}'", input.type_name()));
}

Value round(Interp& in, const Value& input, Args& args) {
  const auto bound = in.bind(args, "round", {"precision", "method"});
  const Int precision = bound[0] ? bound[0]->as_int().value_or(0) : 0;
  const std::string method = bound[1] && bound[1]->as_text() ? bound[1]->as_text()->bytes : "common";
  const auto value = input.as_number();
  if (!value) return in.fail(args.line, fmt::format("round takes a number, not '{}'", input.type_name()));
  if (precision < -30 || precision > 30) return in.fail(args.line, "round takes a precision from -30 to 30");
  const auto digits = static_cast<int>(precision);
  const double factor = std::pow(10.0, digits);
  if (method == "ceil") return Value(std::ceil(*value * factor) / factor);
  if (method == "floor") return Value(std::floor(*value * factor) / factor);
  if (method != "common") return in.fail(args.line, "round takes the methods common, ceil and floor");
  // Python rounds the exact decimal value half to even, and integers stay integers.
  if (const auto i = input.as_int(); i && digits >= 0) return Value(*i);
  if (digits >= 0) return Value(std::strtod(fmt::format("{:.{}f}", *value, digits).c_str(), nullptr));
  const double rounded = std::nearbyint(*value * factor) / factor;
  return input.as_int() ? Value(static_cast<Int>(rounded)) : Value(rounded);
}

Value safe(Interp&, const Value& input, Args&) { return input; }

Value format(Interp& in, const Value& input, Args& args) {
  if (!args.positional.empty() && !args.keywords.empty())
    return in.fail(args.line, "format takes positional or named values, not both");
  if (args.keywords.empty())
    return percent_format(in, to_str(input), make_list(std::move(args.positional), ListKind::Tuple), args.line);
  Dict named;
  for (auto& [key, value] : args.keywords) named.set(Value::text(key), value);
  return percent_format(in, to_str(input), make_dict(std::move(named)), args.line);
}

Value wordcount(Interp& in, const Value& input, Args& args) {
  in.bind(args, "wordcount", {});
  const TaintedText text = to_str(input);
  Int words = 0;
  bool within = false;
  for (size_t i = 0; i < text.bytes.size();) {
    const utf8::Decoded d = utf8::decode(text.bytes, i);
    const bool word = utf8::is_word(d.code_point);
    words += word && !within ? 1 : 0;
    within = word;
    i += d.length;
  }
  return Value(words);
}

}  // namespace

Filter find_text_filter(std::string_view name) {
  struct Entry {
    std::string_view name;
    Filter filter;
  };
  static constexpr Entry kFilters[] = {
      {"upper", mapped<utf8::upper>},
      {"lower", mapped<utf8::lower>},
      {"capitalize", capitalize},
      {"title", title},
      {"trim", trim},
      {"replace", replace},
      {"string", string},
      {"escape", escape},
      {"e", escape},
      {"indent", indent},
      {"default", default_value},
      {"d", default_value},
      {"int", to_int},
      {"float", to_float},
      {"abs", absolute},
      {"round", round},
      {"safe", safe},
      {"format", format},
      {"wordcount", wordcount},
      {"tojson", to_json},
  };
  for (const Entry& entry : kFilters)
    if (entry.name == name) return entry.filter;
  return nullptr;
}

}  // namespace plumb::jinja
