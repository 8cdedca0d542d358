#include "grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

namespace plumb::grammar {

namespace {

// Strings may hold any harmless character, and those of bounded length few of them near their end; what patterns allow
// is seldom more than letters and digits.
struct SliceSize {
  CharClass of;
  int max_chars;
};
constexpr SliceSize kSlices[] = {{CharClass::Harmless, Vocabulary::kMaxSliceChars},
                                 {CharClass::Harmless, 7},
                                 {CharClass::Alphanumeric, Vocabulary::kMaxSliceChars},
                                 {CharClass::Lower, Vocabulary::kMaxSliceChars},
                                 {CharClass::Harmless, 3}};

// Characters of a token that is wholly made of those of a class; 0 when it isn't.
int chars_of(CharClass which, std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  int count = 0;
  for (size_t i = 0; i < text.size(); ++count) {
    if (in_class(which, byte(i))) {
      ++i;
      continue;
    }
    if (which != CharClass::Harmless) return 0;
    const auto* form = std::ranges::find_if(
        kUtf8Forms, [&](const Utf8Form& f) { return f.lead_low <= byte(i) && byte(i) <= f.lead_high; });
    if (form == std::end(kUtf8Forms) || byte(i + 1) < form->second_low || byte(i + 1) > form->second_high) return 0;
    for (int k = 0; k < form->more; ++k) {
      if ((byte(i + 2 + static_cast<size_t>(k)) & 0xc0) != 0x80) return 0;
    }
    i += 2 + static_cast<size_t>(form->more);
  }
  return count;
}

// `ids` sorted by their bytes.
TokenTrie make_trie(const std::vector<int32_t>& ids, const std::vector<std::string>& bytes) {
  TokenTrie trie;
  trie.tokens = ids;
  std::vector<size_t> path;  // nodes of the text so far
  std::string_view before;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string_view text = bytes[static_cast<size_t>(ids[i])];
    const auto common = static_cast<size_t>(std::ranges::mismatch(before, text).in1 - before.begin());
    while (path.size() > common) {
      trie.nodes[path.back()].end = static_cast<int32_t>(trie.nodes.size());
      path.pop_back();
    }
    for (size_t k = common; k < text.size(); ++k) {
      path.push_back(trie.nodes.size());
      trie.nodes.push_back({.first_token = static_cast<int32_t>(i),
                            .depth = static_cast<uint16_t>(k + 1),
                            .byte = static_cast<uint8_t>(text[k])});
    }
    ++trie.nodes[path.back()].token_count;
    before = text;
  }
  for (const size_t node : path) trie.nodes[node].end = static_cast<int32_t>(trie.nodes.size());
  for (size_t i = trie.nodes.size(); i-- > 0;) {
    TokenTrie::Node& node = trie.nodes[i];
    node.pure = (1u << kCharClasses) - 1;
    for (auto c = static_cast<int32_t>(i) + 1; c < node.end; c = trie.nodes[static_cast<size_t>(c)].end) {
      const TokenTrie::Node& child = trie.nodes[static_cast<size_t>(c)];
      node.height = std::max(node.height, static_cast<uint8_t>(std::min(254, int{child.height}) + 1));
      for (int k = 0; k < kCharClasses; ++k) {
        const bool pure = in_class(static_cast<CharClass>(k), child.byte) && (child.pure >> k & 1u) != 0;
        if (!pure) node.pure &= static_cast<uint8_t>(~(1u << k));
      }
    }
  }
  return trie;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> bytes, std::vector<Tag> tags)
    : bytes_(std::move(bytes)), tags_(std::move(tags)) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < bytes_.size(); ++id) {
    if (bytes_[id].empty() || tag_of(static_cast<int32_t>(id)) >= 0) continue;
    if (bytes_[id].size() > UINT16_MAX) continue;  // no text of a model's token is so long
    ids.push_back(static_cast<int32_t>(id));
    longest_ = std::max(longest_, bytes_[id].size());
  }
  std::ranges::stable_sort(
      ids, [&](int32_t a, int32_t b) { return bytes_[static_cast<size_t>(a)] < bytes_[static_cast<size_t>(b)]; });
  all_ = make_trie(ids, bytes_);
  for (const auto& [of, max_chars] : kSlices) {
    Slice slice{.of = of, .max_chars = max_chars, .mask = std::vector<uint32_t>(words(), 0)};
    std::vector<int32_t> rest;
    for (const int32_t id : ids) {
      const int count = chars_of(of, bytes_[static_cast<size_t>(id)]);
      if (count > 0 && count <= max_chars) {
        slice.mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
      } else {
        rest.push_back(id);
      }
    }
    slice.rest = make_trie(rest, bytes_);
    slices_.push_back(std::move(slice));
  }
}

int Vocabulary::tag_of(int32_t id) const {
  const auto it = std::ranges::find(tags_, id, &Tag::id);
  return it == tags_.end() ? -1 : static_cast<int>(it - tags_.begin());
}

int Vocabulary::tag_named(std::string_view text) const {
  const auto it = std::ranges::find(tags_, text, &Tag::text);
  return it == tags_.end() ? -1 : static_cast<int>(it - tags_.begin());
}

}  // namespace plumb::grammar
