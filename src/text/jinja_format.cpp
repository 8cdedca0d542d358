// Python's two ways to format: "..." % values, and "...".format(values).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_interp.h"
#include "text/unicode.h"

namespace plumb::jinja {
namespace {

struct Spec {
  bool left = false;
  bool zero = false;
  bool plus = false;
  size_t width = 0;
  std::optional<int> precision{};
};

constexpr size_t kMaxWidth = 10'000;

size_t digits(const std::string& s, size_t& i) {
  size_t value = 0;
  for (; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i)
    value = std::min<size_t>(value * 10 + static_cast<size_t>(s[i] - '0'), kMaxWidth + 1);
  return value;
}

void pad(TextBuilder& out, const TaintedText& text, const Spec& spec, bool number) {
  const size_t size = utf8::count(text.bytes);
  const size_t fill = spec.width > size ? spec.width - size : 0;
  const bool zeros = spec.zero && number && !spec.left;
  const bool sign = zeros && !text.bytes.empty() && (text.bytes[0] == '-' || text.bytes[0] == '+');
  if (sign) out.append(text, 0, 1);
  if (!spec.left) out.append(std::string(fill, zeros ? '0' : ' '));
  out.append(text, sign ? 1 : 0, text.bytes.size());
  if (spec.left) out.append(std::string(fill, ' '));
}

std::optional<TaintedText> percent_value(Interp& in, char type, const Value& value, const Spec& spec, int line) {
  TextBuilder out;
  const auto signed_text = [&](std::string s) { return TaintedText{(spec.plus && s[0] != '-' ? "+" : "") + s, {}}; };
  switch (type) {
    case 's': {
      const TaintedText text = to_str(value);
      if (!spec.precision) return text;
      const std::vector<size_t> bounds = TextOps::boundaries(text.bytes);
      return plumb::slice(text, 0, bounds[std::min(bounds.size() - 1, static_cast<size_t>(*spec.precision))]);
    }
    case 'r':
      append_repr(out, value);
      return out.take();
    case 'd':
    case 'i':
      if (const auto i = value.as_int()) return signed_text(int_str(*i));
      if (const auto* d = value.get<double>(); d && std::fabs(*d) < 1e36)
        return signed_text(int_str(static_cast<Int>(*d)));
      break;
    case 'x':
      if (const auto i = value.as_int(); i && *i >= 0 && *i <= INT64_MAX)
        return TaintedText{fmt::format("{:x}", static_cast<int64_t>(*i)), {}};
      break;
    case 'f':
    case 'F':
    case 'e':
    case 'g':
      if (const auto d = value.as_number()) {
        const int precision = spec.precision.value_or(6);
        if (type == 'e') return signed_text(fmt::format("{:.{}e}", *d, precision));
        if (type == 'g') return signed_text(fmt::format("{:.{}g}", *d, precision));
        return signed_text(fmt::format("{:.{}f}", *d, precision));
      }
      break;
    default:
      break;
  }
  in.fail(line, fmt::format("unsupported format '%{}' of a {}", type, value.type_name()));
  return std::nullopt;
}

}  // namespace

Value percent_format(Interp& in, const TaintedText& format, const Value& value, int line) {
  const std::string& f = format.bytes;
  const List* list = value.as_list();
  const bool tuple = list != nullptr && list->kind == ListKind::Tuple;
  size_t used = 0;
  TextBuilder out;
  for (size_t i = 0; i < f.size() && in.ok();) {
    const size_t percent = std::min(f.find('%', i), f.size());
    out.append(format, i, percent);
    i = percent + 1;
    if (percent >= f.size()) break;
    std::optional<Value> named;
    if (i < f.size() && f[i] == '(') {
      const size_t close = f.find(')', i);
      const Dict* dict = value.as_dict();
      if (close == std::string::npos || dict == nullptr) return in.fail(line, "format requires a mapping");
      const Value* found = dict->find(f.substr(i + 1, close - i - 1));
      if (found == nullptr) return in.fail(line, "a format names a missing key");
      named = *found;
      i = close + 1;
    }
    Spec spec;
    for (; i < f.size() && std::string_view("-0+ #").find(f[i]) != std::string_view::npos; ++i) {
      spec.left |= f[i] == '-';
      spec.zero |= f[i] == '0';
      spec.plus |= f[i] == '+';
    }
    spec.width = digits(f, i);
    if (i < f.size() && f[i] == '.') spec.precision = static_cast<int>(digits(f, ++i));
    if (i >= f.size()) return in.fail(line, "incomplete format");
    if (spec.width > kMaxWidth || spec.precision.value_or(0) > 500) return in.fail(line, "a format is too wide");
    const char type = f[i++];
    if (type == '%') {
      out.append("%");
      continue;
    }
    if (!named && (tuple ? used >= list->items.size() : used > 0))
      return in.fail(line, "not enough arguments for format string");
    const Value& argument = named ? *named : tuple ? list->items[used] : value;
    ++used;
    if (const auto text = percent_value(in, type, argument, spec, line))
      pad(out, *text, spec, type != 's' && type != 'r');
  }
  if (tuple ? used < list->items.size() : used == 0 && !value.as_dict() && !value.as_list() && !value.is_undefined())
    return in.fail(line, "not all arguments converted during string formatting");
  return in.make_text(std::move(out), line);
}

// {} {0} {name} {{ }}; a format specification within the braces is refused.
Value brace_format(Interp& in, const TaintedText& format, Args& args) {
  const std::string& f = format.bytes;
  size_t next = 0;
  TextBuilder out;
  for (size_t i = 0; i < f.size() && in.ok();) {
    const size_t brace = std::min(f.find_first_of("{}", i), f.size());
    out.append(format, i, brace);
    if (brace >= f.size()) break;
    if (brace + 1 < f.size() && f[brace + 1] == f[brace]) {
      out.append(format, brace, brace + 1);
      i = brace + 2;
      continue;
    }
    const size_t close = f.find('}', brace);
    if (f[brace] == '}' || close == std::string::npos) return in.fail(args.line, "a single brace in format()");
    const std::string field = f.substr(brace + 1, close - brace - 1);
    i = close + 1;
    if (field.find_first_of(":!.[{") != std::string::npos)
      return in.fail(args.line, fmt::format("the format field '{}' is not supported", field));
    const bool number = field.find_first_not_of("0123456789") == std::string::npos && field.size() < 6;
    if (number) {
      const size_t index = field.empty() ? next++ : static_cast<size_t>(std::stol(field));
      if (index >= args.positional.size()) return in.fail(args.line, "format() misses an argument");
      append_str(out, args.positional[index]);
    } else {
      const auto it =
          std::find_if(args.keywords.begin(), args.keywords.end(), [&](const auto& k) { return k.first == field; });
      if (it == args.keywords.end()) return in.fail(args.line, fmt::format("format() misses '{}'", field));
      append_str(out, it->second);
    }
    if (out.size() > in.limits().output_bytes) return in.fail(args.line, "a text grows too long");
  }
  return in.make_text(std::move(out), args.line);
}

}  // namespace plumb::jinja
