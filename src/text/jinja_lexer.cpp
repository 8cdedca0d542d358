#include "text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/unicode.h"

namespace plumb::jinja {

Error template_error(int line, std::string_view message) {
  return {Code::Usage, fmt::format("chat template, line {}: {}", line, message), {}, {}};
}

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
// 0 ... 15, or 99 for what is no hexadecimal digit.
uint32_t hex_digit(char c) {
  if (is_digit(c)) return static_cast<uint32_t>(c - '0');
  const int letter = (c | 0x20) - 'a';
  return letter >= 0 && letter < 6 ? static_cast<uint32_t>(letter + 10) : 99;
}

constexpr std::array<std::string_view, 29> kOperators = {  // longer ones first
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[", "]", "(",
    ")",  "{",  "}",  ">",  "<",  "=",  ".", ":", "|", ",", ";", "!", "@", "&"};

// Line ends become "\n" and the last one is dropped.
std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) PLUMB_TRY_STATUS(root());
    push(TokenKind::End, "");
    return std::move(tokens_);
  }

 private:
  // The next tag from `from` on: a position, or npos.
  size_t find_tag(size_t from) const {
    for (size_t i = source_.find('{', from); i != std::string::npos; i = source_.find('{', i + 1)) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (next == '%' || next == '{' || next == '#') return i;
    }
    return std::string::npos;
  }

  Status root() {
    const size_t tag = find_tag(at_);
    if (tag == std::string::npos) {
      data(at_, source_.size());
      at_ = source_.size();
      return {};
    }
    const char kind = source_[tag + 1];
    size_t inside = tag + 2;
    const char sign =
        inside < source_.size() && (source_[inside] == '-' || source_[inside] == '+') ? source_[inside] : '\0';
    if (sign != '\0') ++inside;
    data(at_, text_end(at_, tag, sign, kind == '{'));
    advance(inside);
    if (kind == '#') return comment();
    if (kind == '{') {
      push(TokenKind::VariableBegin, "{{");
      return code("}}", TokenKind::VariableEnd);
    }
    if (const size_t body = raw_tag(); body != 0) return raw(body);
    push(TokenKind::BlockBegin, "{%");
    return code("%}", TokenKind::BlockEnd);
  }

  // Where the text before a tag ends once whitespace control is done.
  size_t text_end(size_t begin, size_t tag, char sign, bool variable) const {
    if (sign == '-') {
      size_t end = tag;
      while (end > begin) {
        const size_t before = utf8::previous(source_, end);
        if (!utf8::is_python_space(utf8::decode(source_, before).code_point)) break;
        end = before;
      }
      return end;
    }
    if (sign == '+' || variable) return tag;
    const size_t newline = std::string_view(source_).substr(begin, tag - begin).rfind('\n');
    const bool found = newline != std::string_view::npos;
    const size_t line = found ? begin + newline + 1 : begin;
    if (!found && !line_starting_) return tag;
    for (size_t i = line; i < tag;) {
      const utf8::Decoded d = utf8::decode(source_, i);
      if (!utf8::is_python_space(d.code_point)) return tag;
      i += d.length;
    }
    return line;
  }

  void data(size_t begin, size_t end) {
    if (end > begin) push(TokenKind::Data, source_.substr(begin, end - begin));
  }

  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  // Everything up to `to` is done: counts its lines.
  void advance(size_t to) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<ptrdiff_t>(at_), source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    if (to > at_) line_starting_ = source_[to - 1] == '\n';
    at_ = to;
  }

  size_t skip_spaces(size_t i) const {
    while (i < source_.size()) {
      const utf8::Decoded d = utf8::decode(source_, i);
      if (!utf8::is_python_space(d.code_point)) break;
      i += d.length;
    }
    return i;
  }

  bool at(size_t i, std::string_view text) const { return std::string_view(source_).substr(i).starts_with(text); }

  // The end of a tag at `i` with its whitespace control, or 0: "-%}" and blanks; "+%}"; "%}" and one newline.
  size_t tag_end(size_t i, std::string_view close) const {
    if (at(i, "-") && at(i + 1, close)) return skip_spaces(i + 1 + close.size());
    if (close == "}}") return at(i, close) ? i + close.size() : 0;
    if (at(i, "+") && at(i + 1, close)) return i + 1 + close.size();
    if (!at(i, close)) return 0;
    i += close.size();
    return i < source_.size() && source_[i] == '\n' ? i + 1 : i;
  }

  Status comment() {
    for (size_t i = at_; i < source_.size(); ++i)
      if (const size_t end = tag_end(i, "#}"); end != 0) {
        advance(end);
        return {};
      }
    return template_error(line_, "a comment is not closed");
  }

  // After "{%": where a raw block's text begins, or 0 when this is no raw tag.
  size_t raw_tag() const {
    size_t i = skip_spaces(at_);
    if (!at(i, "raw")) return 0;
    i = skip_spaces(i + 3);
    if (at(i, "-%}")) return skip_spaces(i + 3);
    return at(i, "%}") ? i + 2 : 0;
  }

  Status raw(size_t body) {
    advance(body);
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      size_t i = tag + 2;
      const char sign = i < source_.size() && (source_[i] == '-' || source_[i] == '+') ? source_[i] : '\0';
      i = skip_spaces(sign != '\0' ? i + 1 : i);
      if (!at(i, "endraw")) continue;
      const size_t end = tag_end(skip_spaces(i + 6), "%}");
      if (end == 0) continue;
      data(at_, text_end(at_, tag, sign, false));
      advance(end);
      return {};
    }
    return template_error(line_, "a raw block is not closed");
  }

  Status code(std::string_view close, TokenKind end_kind) {
    std::string open;  // brackets that wait for their partners
    while (at_ < source_.size()) {
      const size_t end = open.empty() ? tag_end(at_, close) : 0;
      if (end != 0) {
        push(end_kind, std::string(close));
        advance(end);
        return {};
      }
      if (const size_t next = skip_spaces(at_); next != at_) {
        advance(next);
        continue;
      }
      const char c = source_[at_];
      if (c == '\'' || c == '"') {
        PLUMB_TRY_STATUS(string(c));
      } else if (c >= '0' && c <= '9') {
        PLUMB_TRY_STATUS(number());
      } else if (name_byte(c)) {
        size_t i = at_;
        while (i < source_.size() && (name_byte(source_[i]) || (source_[i] >= '0' && source_[i] <= '9'))) ++i;
        push(TokenKind::Name, source_.substr(at_, i - at_));
        advance(i);
      } else {
        PLUMB_TRY_STATUS(operation(open));
      }
    }
    return template_error(line_, fmt::format("a tag is not closed by '{}'", close));
  }

  static bool name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
  }

  Status operation(std::string& open) {
    const auto found =
        std::find_if(kOperators.begin(), kOperators.end(), [&](std::string_view op) { return at(at_, op); });
    if (found == kOperators.end()) return template_error(line_, fmt::format("unexpected character '{}'", source_[at_]));
    const char c = found->front();
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) return template_error(line_, fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    push(TokenKind::Operator, std::string(*found));
    advance(at_ + found->size());
    return {};
  }

  Status number();
  Status string(char quote);
  Status escape(size_t& i, std::string& out) const;
  struct NumberEscape {
    char letter = '\0';
    size_t digits = 0;  // at most
    bool octal = false;
  };
  Status code_point(const NumberEscape& form, size_t& i, std::string& out) const;
  // Character i of the source, '\0' beyond its end.
  char at(size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
  // From i on behind all that is `allowed` or an underscore.
  size_t digits(size_t i, std::string_view allowed) const {
    while (i < source_.size() && (allowed.find(source_[i]) != std::string_view::npos || source_[i] == '_')) ++i;
    return i;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_{};
};

// 12, 1_000, 0x1f, 0b1, 0o7, 1.5, 1e3, 1.5e-3
Status Lexer::number() {
  constexpr std::string_view kDecimal = "0123456789";
  const char base = source_[at_] == '0' ? static_cast<char>(at(at_ + 1) | 0x20) : '\0';
  size_t end = 0;
  bool is_float = false;
  if (base == 'x') {
    end = digits(at_ + 2, "0123456789abcdefABCDEF");
  } else if (base == 'b' || base == 'o') {
    end = digits(at_ + 2, base == 'b' ? "01" : "01234567");
  } else {
    end = digits(at_, kDecimal);
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // a.0.1 takes items 0 and 1
    if (!after_dot && at(end) == '.' && is_digit(at(end + 1))) {
      is_float = true;
      end = digits(end + 1, kDecimal);
    }
    const size_t sign = at(end + 1) == '-' || at(end + 1) == '+' ? 1 : 0;
    if ((at(end) | 0x20) == 'e' && is_digit(at(end + 1 + sign))) {
      is_float = true;
      end = digits(end + 1 + sign, kDecimal);
    }
  }
  std::string text = source_.substr(at_, end - at_);
  std::erase(text, '_');
  push(is_float ? TokenKind::Float : TokenKind::Integer, std::move(text));
  advance(end);
  return {};
}

Status Lexer::string(char quote) {
  std::string text;
  size_t i = at_ + 1;
  while (i < source_.size() && source_[i] != quote) {
    if (source_[i] == '\\') {
      PLUMB_TRY_STATUS(escape(i, text));
    } else {
      text += source_[i++];
    }
  }
  if (i >= source_.size()) return template_error(line_, "a string is not closed");
  push(TokenKind::String, std::move(text));
  advance(i + 1);
  return {};
}

// Python's escapes, from the backslash at `i` on; an unknown one keeps its backslash.
Status Lexer::escape(size_t& i, std::string& out) const {
  static constexpr std::string_view kLetters = "abfnrtv\\'\"";
  static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
  const char c = at(i + 1);
  i += 2;
  if (c == '\n') return {};
  if (const size_t known = kLetters.find(c); c != '\0' && known != std::string_view::npos) {
    out += kMeanings[known];
    return {};
  }
  switch (c) {
    case 'N':
      return template_error(line_, "characters by name (\\N{...}) are not supported");
    case 'x':
      return code_point({.letter = c, .digits = 2}, i, out);
    case 'u':
      return code_point({.letter = c, .digits = 4}, i, out);
    case 'U':
      return code_point({.letter = c, .digits = 8}, i, out);
    default:
      break;
  }
  if (c >= '0' && c <= '7') return code_point({.letter = c, .digits = 3, .octal = true}, --i, out);
  out += '\\';
  if (c != '\0') out += c;
  return {};
}

// The character whose number begins at `i`; octal numbers may be shorter.
Status Lexer::code_point(const NumberEscape& form, size_t& i, std::string& out) const {
  const size_t begin = i;
  const uint32_t radix = form.octal ? 8 : 16;
  uint32_t value = 0;
  for (; i < begin + form.digits && hex_digit(at(i)) < radix; ++i) value = value * radix + hex_digit(source_[i]);
  const bool whole = form.octal || i == begin + form.digits;
  if (!whole || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
    return template_error(line_, fmt::format("a bad '\\{}' escape", form.letter));
  utf8::append(out, value);
  return {};
}

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (!utf8::valid(source)) return template_error(1, "the template is not UTF-8");
  return Lexer(normalize_lines(source)).run();
}

}  // namespace plumb::jinja
