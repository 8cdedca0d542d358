#include "text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>

#include "base/check.h"

namespace plumb::utf8 {
namespace {

bool continuation(std::string_view text, size_t i, uint8_t low = 0x80, uint8_t high = 0xBF) {
  const auto byte = static_cast<uint8_t>(text[i]);
  return byte >= low && byte <= high;
}

// Second-byte bounds and length of a sequence by its first byte (Unicode 15, table 3-7).
struct Lead {
  uint8_t length = 0;  // 0: no character begins so
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// What one character maps to under utf8proc, e.g. its full lower case.
std::string case_mapped(char32_t c, utf8proc_int32_t (*simple)(utf8proc_int32_t)) {
  std::string out;
  append(out, static_cast<char32_t>(simple(static_cast<utf8proc_int32_t>(c))));
  return out;
}

}  // namespace

Decoded decode(std::string_view text, size_t position) {
  if (position >= text.size()) return {};
  const auto first = static_cast<uint8_t>(text[position]);
  if (first < 0x80) return {.code_point = first, .length = 1, .valid = true};
  const Lead lead = lead_of(first);
  if (lead.length == 0) return {.code_point = kReplacement, .length = 1};
  char32_t c = first & (0xFF >> (lead.length + 1));
  for (uint8_t i = 1; i < lead.length; ++i) {
    if (position + i >= text.size()) return {.code_point = kReplacement, .length = i, .truncated = true};
    const bool good = i == 1 ? continuation(text, position + i, lead.low, lead.high) : continuation(text, position + i);
    if (!good) return {.code_point = kReplacement, .length = i};
    c = (c << 6) | (static_cast<uint8_t>(text[position + i]) & 0x3F);
  }
  return {.code_point = c, .length = lead.length, .valid = true};
}

void append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool valid(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Decoded d = decode(text, i);
    if (!d.valid) return false;
    i += d.length;
  }
  return true;
}

std::string replace_invalid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Decoded d = decode(text, i);
    if (d.valid) {
      out.append(text.substr(i, d.length));
    } else {
      append(out, kReplacement);
    }
    i += d.length;
  }
  return out;
}

size_t count(std::string_view text) {
  size_t n = 0;
  for (const char c : text) n += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return n;
}

size_t previous(std::string_view text, size_t position) {
  do {
    --position;
  } while (position > 0 && (static_cast<uint8_t>(text[position]) & 0xC0) == 0x80);
  return position;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

bool is_alphabetic(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND; }

bool is_cased(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}
bool is_upper(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LL; }
bool is_numeric(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_word(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  // Lu..Lo, Mn..Me, Nd; then letter-like numbers, joiners and connectors (Unicode technical standard 18, annex C).
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ND) || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9);
}

std::string upper(char32_t c) {
  if (c == 0xDF) return "SS";  // the one common character whose simple mapping is itself
  return case_mapped(c, utf8proc_toupper);
}
std::string lower(char32_t c) {
  if (c == 0x130) return "i\xCC\x87";
  return case_mapped(c, utf8proc_tolower);
}
std::string title(char32_t c) {
  if (c == 0xDF) return "Ss";
  return case_mapped(c, utf8proc_totitle);
}

std::string normalize(std::string_view text, Form form) {
  int options = UTF8PROC_STABLE;
  options |= form == Form::Nfc || form == Form::Nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::Nfkc || form == Form::Nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped, static_cast<utf8proc_option_t>(options));
  PLUMB_CHECK(size >= 0, "normalisation of valid UTF-8 failed");
  std::string out(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
  std::free(mapped);
  return out;
}

}  // namespace plumb::utf8
