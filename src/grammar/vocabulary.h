// The tokens of a model as a constraint sees them: byte strings in a trie, and tags, which are symbols of their own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plumb::grammar {

// Kinds of characters of which many may often follow in a row; each may stand inside a JSON string as it is.
enum class CharClass : uint8_t { Harmless, Alphanumeric, Lower };
inline constexpr int kCharClasses = 3;

// Those of a class that are one byte; the harmless ones are also all characters of several bytes.
inline constexpr bool in_class(CharClass which, unsigned char c) {
  const bool lower = c >= 'a' && c <= 'z';
  if (which == CharClass::Lower) return lower;
  if (which == CharClass::Alphanumeric) return lower || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return c >= 0x20 && c <= 0x7e && c != '"' && c != '\\';
}

// Tokens in depth-first order, so that skipping a subtree is one jump.
struct TokenTrie {
  struct Node {
    int32_t end = 0;          // first node after the subtree
    int32_t first_token = 0;  // of `tokens`: those that end here, then those below
    int32_t token_count = 0;  // that end here
    uint16_t depth = 0;       // bytes, from 1
    uint8_t byte = 0;
    uint8_t pure = 0;    // bit c: all below are ASCII characters of class c
    uint8_t height = 0;  // bytes below, at most 255
  };
  std::vector<Node> nodes{};
  std::vector<int32_t> tokens{};
};

class Vocabulary {
 public:
  struct Tag {
    std::string text{};
    int32_t id = -1;
  };
  // Tokens of characters of one class only, at most `max_chars`.
  // Where so many of them may follow, whatever they are, all of `mask` may, and only `rest` has to be looked at.
  struct Slice {
    CharClass of = CharClass::Harmless;
    int max_chars = 0;
    std::vector<uint32_t> mask{};
    TokenTrie rest{};
  };
  static constexpr int kMaxSliceChars = 24;

  // `bytes[id]` is a token's text; "" for ids that are never text: control tokens, padding rows, tags.
  Vocabulary(std::vector<std::string> bytes, std::vector<Tag> tags);

  int32_t size() const { return static_cast<int32_t>(bytes_.size()); }
  size_t words() const { return (bytes_.size() + 31) / 32; }  // of a mask
  std::string_view bytes(int32_t id) const { return bytes_[static_cast<size_t>(id)]; }
  const std::vector<Tag>& tags() const { return tags_; }
  int tag_of(int32_t id) const;                                 // -1: no tag
  int tag_named(std::string_view text) const;                   // -1: no such tag
  size_t longest() const { return longest_; }                   // bytes of a token
  const TokenTrie& all() const { return all_; }                 // of all tokens with bytes
  const std::vector<Slice>& slices() const { return slices_; }  // those that leave least to look at first

 private:
  std::vector<std::string> bytes_;
  std::vector<Tag> tags_;
  size_t longest_ = 0;
  TokenTrie all_{};
  std::vector<Slice> slices_{};
};

// Well-formed UTF-8 beyond ASCII: the range of the first byte, of the second, and how many free ones follow.
struct Utf8Form {
  uint8_t lead_low, lead_high, second_low, second_high;
  int more;
};
inline constexpr Utf8Form kUtf8Forms[] = {
    {0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1}, {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
    {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2}, {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};

}  // namespace plumb::grammar
