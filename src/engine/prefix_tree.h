// Which pages hold which token prefix: a radix tree whose edges are whole pages. A node is a page, so all storage is
// sized by the number of pages and nothing is allocated later but the names of new salts.
//
// A page is found by its parent, its `page_tokens` token ids and, with an MTP layer, by the token after them too: the
// layer's last slot of a page is computed from that token, so a page found this way has the right one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/page_pool.h"

namespace plumb {

class PrefixTree {
 public:
  // `next_token_in_key`: the MTP layer runs.
  PrefixTree(PagePool& pool, int page_tokens, bool next_token_in_key);

  // Appends the pages of the longest known prefix of `tokens`, at most `max_pages`, to `pages`, with a reference of the
  // caller's on each. Returns how many.
  int match(std::string_view salt, std::span<const int32_t> tokens, int max_pages, std::vector<int32_t>& pages);
  // Tokens that must be known before page `index` can be entered.
  int64_t tokens_needed(int index) const { return int64_t{index + 1} * page_tokens_ + (key_tokens_ - page_tokens_); }
  // Enters pages[index], whose rows are all computed and clean; its predecessors are in the tree and the caller refers
  // to them. When the same prefix is known already, the caller's page is exchanged for the known one. False: not
  // entered, since a predecessor has left the tree or the page is suspect.
  bool insert(std::string_view salt, std::span<const int32_t> tokens, std::vector<int32_t>& pages, int index);

  // Fresh pages, appended to `pages`; old prefixes make room. All or none.
  bool allocate(int64_t count, std::vector<int32_t>& pages);
  void release(int32_t page);
  // Something that read or wrote the page was poisoned: it and all that follow it leave the tree, and are wiped before
  // anyone gets them again.
  void mark_suspect(int32_t page);

  // Free, or held by nobody but the tree. Who refers to a page in the tree refers to all before it too, so whatever is
  // held by the tree alone can be evicted, leaves first.
  int64_t available() const { return pool_.free() + alone_; }
  int64_t cached() const { return cached_; }
  bool contains(int32_t page) const { return node(page).in_tree; }
  const PagePool& pool() const { return pool_; }

  // Empty when links, counts and the eviction list agree; else what is wrong.
  std::string broken_invariant() const;

 private:
  static constexpr int32_t kNone = -1;
  struct Node {
    bool in_tree = false;
    bool alone = false;      // nobody but the tree refers to it
    bool evictable = false;  // alone and a leaf
    int32_t parent = kNone;  // page, or top_of(salt)
    int32_t children = 0;
    int32_t next_in_bucket = kNone;
    int32_t older = kNone, newer = kNone;  // eviction list
    uint64_t last_use = 0;
  };
  struct Salt {
    std::string name{};
    int32_t first_pages = 0;
  };
  static int32_t top_of(int32_t salt) { return -2 - salt; }
  Node& node(int32_t page) { return nodes_[static_cast<size_t>(page)]; }
  const Node& node(int32_t page) const { return nodes_[static_cast<size_t>(page)]; }
  std::span<const int32_t> key(int32_t page) const {
    return {keys_.data() + static_cast<size_t>(page) * static_cast<size_t>(key_tokens_),
            static_cast<size_t>(key_tokens_)};
  }

  size_t bucket(int32_t parent, std::span<const int32_t> tokens) const;
  int32_t find(int32_t parent, std::span<const int32_t> tokens) const;
  void retain(int32_t page);
  void link(int32_t page, int32_t parent, std::span<const int32_t> tokens);
  void unlink(int32_t page);
  void evict(int32_t page);
  void forget(int32_t page);
  void refresh(int32_t page);
  void list_insert(int32_t page);
  void list_remove(int32_t page);
  int32_t salt_for_insert(std::string_view salt);

  PagePool& pool_;
  int page_tokens_ = 0;
  int key_tokens_ = 0;
  std::vector<Node> nodes_{};                // [pages]
  std::vector<int32_t> keys_{};              // [pages, key_tokens]
  std::vector<int32_t> buckets_{};           // power of two
  int32_t oldest_ = kNone, newest_ = kNone;  // eviction list, by last use
  uint64_t uses_ = 0;
  int64_t cached_ = 0;
  int64_t alone_ = 0;
  std::unordered_map<std::string, int32_t> salt_ids_{};
  std::vector<Salt> salts_{};
  std::vector<int32_t> free_salts_{};
};

}  // namespace plumb
