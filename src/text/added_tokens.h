// Added tokens: texts that are one token each and are cut out before anything else is tokenised (model.md section 5).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/span.h"

namespace plumb {

struct AddedToken {
  int32_t id = 0;
  std::string content{};
  bool special = false;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
};

// Not to be made by untrusted text (api.md 66): special tokens, and the think, tool and argument tags.
bool is_protected(const AddedToken& token);

// Finds the added tokens of one kind in a text: leftmost, then longest.
class AddedTokenMatcher {
 public:
  void add(const AddedToken& token, std::string pattern);
  bool empty() const { return tokens_.empty(); }

  struct Piece {
    int32_t id = -1;  // -1: text between tokens
    Span span{};
  };
  // Cuts `text` into tokens and the text between. A protected token that would touch an untrusted span stays text.
  std::vector<Piece> split(std::string_view text, std::span<const Span> untrusted) const;

 private:
  struct Entry {
    AddedToken token{};
    std::string pattern{};
  };
  struct Node {
    int32_t child = -1;    // first child
    int32_t sibling = -1;  // next child of the same parent
    int32_t entry = -1;    // token that ends here
    char byte = 0;
  };
  struct Found {
    int32_t entry = -1;
    size_t end = 0;
  };
  int32_t child_of(int32_t node, char byte) const;
  Found longest_at(std::string_view text, size_t begin, std::span<const Span> untrusted) const;

  std::vector<Entry> tokens_{};
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<int32_t> roots_ = std::vector<int32_t>(256, -1);  // node of a first byte
};

}  // namespace plumb
