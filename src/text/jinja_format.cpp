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

// One %-field: `%(key)-08.3f` without its percent sign.
struct Field {
  Spec spec;
  const Value* named = nullptr;  // the value of (key)
  char type = 0;
};

void read_flags(const std::string& f, size_t& i, Spec& spec) {
  for (; i < f.size() && std::string_view("-0+ #").find(f[i]) != std::string_view::npos; ++i) {
    spec.left |= f[i] == '-';
    spec.zero |= f[i] == '0';
    spec.plus |= f[i] == '+';
  }
  spec.width = digits(f, i);
  if (i < f.size() && f[i] == '.') spec.precision = static_cast<int>(digits(f, ++i));
}

// From f[i], just behind a percent sign; i goes behind the field. Null: in has failed.
std::optional<Field> read_field(Interp& in, const std::string& f, size_t& i, const Value& value, int line) {
  const auto fail = [&](const char* message) {
    in.fail(line, message);
    return std::nullopt;
  };
  Field field;
  if (i < f.size() && f[i] == '(') {
    const size_t close = f.find(')', i);
    const Dict* dict = value.as_dict();
    if (close == std::string::npos || dict == nullptr) return fail("format requires a mapping");
    field.named = dict->find(f.substr(i + 1, close - i - 1));
    if (field.named == nullptr) return fail("a format names a missing key");
    i = close + 1;
  }
  read_flags(f, i, field.spec);
  if (i >= f.size()) return fail("incomplete format");
  if (field.spec.width > kMaxWidth || field.spec.precision.value_or(0) > 500) return fail("a format is too wide");
  field.type = f[i++];
  return field;
}

// The argument a {field} stands for: by position (empty: the next one) or by name. Null: in has failed.
const Value* brace_argument(Interp& in, const Args& args, const std::string& field, size_t& next) {
  if (field.find_first_not_of("0123456789") == std::string::npos && field.size() < 6) {
    const size_t index = field.empty() ? next++ : static_cast<size_t>(std::stol(field));
    if (index < args.positional.size()) return &args.positional[index];
    in.fail(args.line, "format() misses an argument");
    return nullptr;
  }
  for (const auto& [name, value] : args.keywords)
    if (name == field) return &value;
  in.fail(args.line, fmt::format("format() misses '{}'", field));
  return nullptr;
}

}  // namespace

Value percent_format(Interp& in, const TaintedText& format, const Value& value, int line) {
  const std::string& f = format.bytes;
  const List* list = value.as_list();
  const bool tuple = list != nullptr && list->kind == ListKind::Tuple;
  const size_t there = tuple ? list->items.size() : 1;
  size_t used = 0;
  TextBuilder out;
  for (size_t i = 0; i < f.size() && in.ok();) {
    const size_t percent = std::min(f.find('%', i), f.size());
    out.append(format, i, percent);
    i = percent + 1;
    if (percent >= f.size()) break;
    const std::optional<Field> field = read_field(in, f, i, value, line);
    if (!field) return {};
    if (field->type == '%') {
      out.append("%");
      continue;
    }
    if (field->named == nullptr && used >= there) return in.fail(line, "not enough arguments for format string");
    const Value& unnamed = tuple && used < there ? list->items[used] : value;
    const Value& argument = field->named != nullptr ? *field->named : unnamed;
    ++used;
    if (const auto text = percent_value(in, field->type, argument, field->spec, line))
      pad(out, *text, field->spec, field->type != 's' && field->type != 'r');
  }
  const bool may_stay_unused = value.as_dict() != nullptr || (list != nullptr && !tuple) || value.is_undefined();
  if (used < there && !may_stay_unused) return in.fail(line, "not all arguments converted during string formatting");
  return in.make_text(std::move(out), line);
}

// {} {0} {name} {{ }}; a format specification within the braces is refused.
Value brace_format(Interp& in, const TaintedText& format, const Args& args) {
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
    const Value* argument = brace_argument(in, args, field, next);
    if (argument == nullptr) return {};
    append_str(out, *argument);
    if (out.size() > in.limits().output_bytes) return in.fail(args.line, "a text grows too long");
  }
  return in.make_text(std::move(out), args.line);
}

}  // namespace plumb::jinja
