#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "text/unicode.h"

namespace plumb {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}
constexpr int kOthers = 68;  // bytes that don't stand for themselves: U+0100 + their rank

struct Alphabet {
  std::array<char16_t, 256> of_byte{};
  std::array<int16_t, 256 + kOthers> of_character{};
};

constexpr Alphabet make_alphabet() {
  Alphabet a;
  for (auto& byte : a.of_character) byte = -1;
  char16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    a.of_byte[byte] = stands_for_itself(byte) ? static_cast<char16_t>(byte) : next++;
    a.of_character[a.of_byte[byte]] = static_cast<int16_t>(byte);
  }
  return a;
}
constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::optional<std::string> bytes_from_alphabet(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const utf8::Decoded d = utf8::decode(text, i);
    if (!d.valid || d.code_point >= kAlphabet.of_character.size()) return std::nullopt;
    const int16_t byte = kAlphabet.of_character[d.code_point];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    i += d.length;
  }
  return bytes;
}

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) utf8::append(text, kAlphabet.of_byte[static_cast<uint8_t>(c)]);
  return text;
}

}  // namespace plumb
