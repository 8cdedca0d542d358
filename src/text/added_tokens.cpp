#include "text/added_tokens.h"

#include <algorithm>
#include <array>

#include "text/unicode.h"

namespace plumb {
namespace {

size_t blanks_before(std::string_view text, size_t position) {
  while (position > 0) {
    const size_t before = utf8::previous(text, position);
    if (!utf8::is_white_space(utf8::decode(text, before).code_point)) break;
    position = before;
  }
  return position;
}

size_t blanks_after(std::string_view text, size_t position) {
  while (position < text.size()) {
    const utf8::Decoded d = utf8::decode(text, position);
    if (!utf8::is_white_space(d.code_point)) break;
    position += d.length;
  }
  return position;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool left = begin == 0 || !utf8::is_word(utf8::decode(text, utf8::previous(text, begin)).code_point);
  const bool right = end == text.size() || !utf8::is_word(utf8::decode(text, end).code_point);
  return left && right;
}

}  // namespace

bool is_protected(const AddedToken& token) {
  static constexpr std::array<std::string_view, 5> kTags = {"think", "tool_call", "tool_response", "arg_key",
                                                            "arg_value"};
  if (token.special) return true;
  std::string_view name = token.content;
  if (!name.starts_with('<') || !name.ends_with('>')) return false;
  name = name.substr(1, name.size() - 2);
  if (name.starts_with('/')) name.remove_prefix(1);
  return std::find(kTags.begin(), kTags.end(), name) != kTags.end();
}

int32_t AddedTokenMatcher::child_of(int32_t node, char byte) const {
  int32_t child = nodes_[node].child;
  while (child >= 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

void AddedTokenMatcher::add(const AddedToken& token, std::string pattern) {
  if (pattern.empty()) return;  // matches nothing, as in the original
  int32_t node = 0;
  for (const char byte : pattern) {
    int32_t child = child_of(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({.sibling = nodes_[node].child, .byte = byte});
      nodes_[node].child = child;
      if (node == 0) roots_[static_cast<uint8_t>(byte)] = child;
    }
    node = child;
  }
  if (nodes_[node].entry < 0) nodes_[node].entry = static_cast<int32_t>(tokens_.size());
  tokens_.push_back({token, std::move(pattern)});
}

AddedTokenMatcher::Found AddedTokenMatcher::longest_at(std::string_view text, size_t begin,
                                                       std::span<const Span> untrusted) const {
  Found best;
  int32_t node = roots_[static_cast<uint8_t>(text[begin])];
  for (size_t i = begin; node >= 0;) {
    const int32_t entry = nodes_[node].entry;
    if (entry >= 0 && !(is_protected(tokens_[entry].token) && touches(untrusted, begin, i + 1))) best = {entry, i + 1};
    if (++i >= text.size()) break;
    node = child_of(node, text[i]);
  }
  return best;
}

std::vector<AddedTokenMatcher::Piece> AddedTokenMatcher::split(std::string_view text,
                                                               std::span<const Span> untrusted) const {
  std::vector<Piece> pieces;
  size_t done = 0;  // end of the last token, blanks that it swallowed included
  for (size_t at = 0; at < text.size();) {
    const Found found = longest_at(text, at, untrusted);
    if (found.entry < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found.entry].token;
    size_t begin = at;
    size_t end = found.end;
    at = found.end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(blanks_before(text, begin), done);
    if (token.rstrip) end = blanks_after(text, end);
    if (done < begin) pieces.push_back({-1, {done, begin}});
    pieces.push_back({token.id, {begin, end}});
    done = end;
  }
  if (done < text.size()) pieces.push_back({-1, {done, text.size()}});
  return pieces;
}

}  // namespace plumb
