// UTF-8 and the few Unicode facts the text layer needs. Code points are char32_t, positions are bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plumb::utf8 {

inline constexpr char32_t kReplacement = 0xFFFD;

struct Decoded {
  char32_t code_point = 0;  // kReplacement when the bytes are no character
  uint8_t length = 0;       // bytes consumed: a character, or one maximal invalid subpart; 0 only at the end
  bool valid = false;
  bool truncated = false;  // invalid only because the text ends inside a character
};

// The character at `position`; never reads past the end. Surrogates, overlong forms and values over 10FFFF are invalid.
Decoded decode(std::string_view text, size_t position);
void append(std::string& out, char32_t code_point);
bool valid(std::string_view text);
// Every maximal invalid subpart becomes one U+FFFD (Unicode 15, section 3.9, "substitution of maximal subparts").
std::string replace_invalid(std::string_view text);
size_t count(std::string_view valid_text);  // code points
// Byte position of the character before `position`; `position` > 0 and on a character boundary.
size_t previous(std::string_view valid_text, size_t position);

// White_Space of the Unicode standard: what `\s` means to the pre-tokeniser's patterns.
bool is_white_space(char32_t c);
// What Python's str.isspace() and str.strip() use: White_Space and the four ASCII information separators.
bool is_python_space(char32_t c);
bool is_alphabetic(char32_t c);  // general categories L*
bool is_decimal(char32_t c);     // general category Nd
bool is_cased(char32_t c);       // general categories Lu, Ll, Lt
bool is_upper(char32_t c);       // Lu
bool is_lower(char32_t c);       // Ll
bool is_numeric(char32_t c);     // general categories N*
bool is_word(char32_t c);        // letters, marks, numbers and connectors, as `\w` of Unicode regular expressions

std::string upper(char32_t c);  // full mapping: may be several characters
std::string lower(char32_t c);
std::string title(char32_t c);

enum class Form { Nfc, Nfd, Nfkc, Nfkd };
std::string normalize(std::string_view valid_text, Form form);

}  // namespace plumb::utf8
