// From Oniguruma's Ruby syntax with UTF-8, which Hugging Face's tokenizers use, to PCRE2's. Both read the patterns of
// published models alike, but for these: `\s` (PCRE2 adds U+180E), `{,n}`, `{n,m}+`, nested classes and `&&`, `^`, `$`,
// `\h`, `\v`, `\w`. What can be said in the other dialect is; the rest is refused.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/newer_characters.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace plumb {
namespace {

// White_Space, and all that is not.
constexpr std::string_view kSpace =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x00-\x08\x0e-\x1f\x21-\x84\x86-\x9f\xa1-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

// General categories; both engines know them and mean the same, up to their Unicode versions.
constexpr std::array<std::string_view, 31> kProperties = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P", "Pc",
    "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

std::string newer_members(std::string_view category) {
  std::string out;
  for (const NewerCharacters& newer : kNewerCharacters)
    if (newer.category.starts_with(category)) out += newer.members;
  return out;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    if (!utf8::valid(in_)) return refuse("text that is not UTF-8");
    while (at_ < in_.size()) PLUMB_TRY_STATUS(item());
    return std::move(out_);
  }

 private:
  Error refuse(std::string_view construct) const {
    return {Code::Unsupported,
            fmt::format("pattern '{}' has {} at byte {}", in_, construct, at_),
            "the two regular-expression dialects differ there, and token ids would differ with them",
            {}};
  }
  bool ahead(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  void copy(size_t bytes) {
    out_ += in_.substr(at_, bytes);
    at_ += bytes;
  }

  Status item() {
    switch (in_[at_]) {
      case '\\':
        return escape(/*in_class=*/false);
      case '[':
        return character_class();
      case '(':
        return group();
      case '{':
        return repetition();
      case '^':
      case '$':
        return refuse("a line anchor");
      case '.':
        return refuse("'.'");
      case '#':  // a comment only in extended mode, which is refused
      default:
        copy(1);
        return {};
    }
  }

  Status group() {
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)"})
      if (ahead(known)) {
        copy(known.size());
        return {};
      }
    if (ahead("(?") || ahead("(*")) return refuse("this kind of group");
    copy(1);
    return {};
  }

  Status repetition() {
    const size_t close = in_.find('}', at_);
    const std::string_view body = close == std::string_view::npos ? "" : in_.substr(at_ + 1, close - at_ - 1);
    const bool counts =
        !body.empty() && body.front() != ',' && body.size() <= 11 &&
        std::all_of(body.begin(), body.end(), [](char c) { return c == ',' || (c >= '0' && c <= '9'); }) &&
        std::count(body.begin(), body.end(), ',') <= 1;
    if (!counts) return refuse("this form of '{'");
    if (close + 1 < in_.size() && (in_[close + 1] == '+' || in_[close + 1] == '?'))
      return refuse("a repetition count followed by '+' or '?'");
    copy(close + 1 - at_);
    return {};
  }

  Status character_class() {
    copy(1);
    if (ahead("^")) copy(1);
    if (ahead("]")) return refuse("']' as the first member of a class");
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '[') return refuse("a class within a class");
      if (ahead("&&")) return refuse("a class intersection");
      if (in_[at_] == '\\') {
        PLUMB_TRY_STATUS(escape(/*in_class=*/true));
      } else {
        copy(1);
      }
    }
    if (at_ == in_.size()) return refuse("an open class");
    copy(1);
    return {};
  }

  void space(std::string_view members, bool in_class) {
    at_ += 2;
    out_ += in_class ? std::string(members) : fmt::format("[{}]", members);
  }

  Status escape(bool in_class) {
    if (at_ + 1 >= in_.size()) return refuse("a trailing backslash");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
        space(kSpace, in_class);
        return {};
      case 'S':
        space(kNotSpace, in_class);
        return {};
      case 'd':
      case 'D':
        at_ += 2;
        return category("Nd", c == 'D', in_class);
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        copy(2);
        return {};
      case 'v':
        at_ += 2;
        out_ += R"(\x0b)";
        return {};
      case 'p':
      case 'P':
        return property(in_class);
      case 'x':
      case 'u':
        return code_point();
      default:
        break;
    }
    const bool plain = static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c));
    if (!plain) return refuse(fmt::format("'\\{}'", c));
    copy(2);
    return {};
  }

  Status property(bool in_class) {
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos || in_[at_ + 2] != '{') return refuse("a property without braces");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    bool negated = in_[at_ + 1] == 'P';
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      negated = !negated;
    }
    if (std::find(kProperties.begin(), kProperties.end(), name) == kProperties.end())
      return refuse(fmt::format("the property '{}'", name));
    at_ = close + 1;
    return category(name, negated, in_class);
  }

  Status category(std::string_view name, bool negated, bool in_class) {
    const std::string newer = newer_members(name);
    if (in_class && negated && !newer.empty()) return refuse("a negated property within a class");
    if (in_class || newer.empty()) {
      out_ += fmt::format("\\{}{{{}}}{}", negated ? 'P' : 'p', name, in_class ? newer : "");
    } else {
      out_ += fmt::format("[{}\\p{{{}}}{}]", negated ? "^" : "", name, newer);
    }
    return {};
  }

  // \xHH, \x{H...} and \uHHHH.
  Status code_point() {
    const bool braces = in_.substr(at_).starts_with("\\x{");
    const size_t begin = at_ + (braces ? 3 : 2);
    const size_t want = in_[at_ + 1] == 'u' ? 4 : 2;
    size_t end = begin;
    while (end < in_.size() && std::isxdigit(static_cast<unsigned char>(in_[end])) && end - begin < (braces ? 6 : want))
      ++end;
    const bool whole = braces ? end > begin && end < in_.size() && in_[end] == '}' : end - begin == want;
    if (!whole) return refuse("this form of a numbered character");
    out_ += fmt::format("\\x{{{}}}", in_.substr(begin, end - begin));
    at_ = end + (braces ? 1 : 0);
    return {};
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_{};
};

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace plumb
