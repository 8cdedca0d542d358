#include "engine/prefix_tree.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace plumb {

PrefixTree::PrefixTree(PagePool& pool, int page_tokens, bool next_token_in_key)
    : pool_(pool), page_tokens_(page_tokens), key_tokens_(page_tokens + (next_token_in_key ? 1 : 0)) {
  const size_t pages = static_cast<size_t>(pool.total());
  nodes_.resize(pages);
  keys_.resize(pages * static_cast<size_t>(key_tokens_));
  buckets_.assign(std::bit_ceil(std::max<size_t>(pages, 1)), kNone);
}

size_t PrefixTree::bucket(int32_t parent, std::span<const int32_t> tokens) const {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ static_cast<uint32_t>(parent);
  for (const int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return static_cast<size_t>(hash) & (buckets_.size() - 1);
}

int32_t PrefixTree::find(int32_t parent, std::span<const int32_t> tokens) const {
  for (int32_t page = buckets_[bucket(parent, tokens)]; page != kNone; page = node(page).next_in_bucket) {
    if (node(page).parent == parent && std::ranges::equal(key(page), tokens)) return page;
  }
  return kNone;
}

int PrefixTree::match(std::string_view salt, std::span<const int32_t> tokens, int max_pages,
                      std::vector<int32_t>& pages) {
  const auto known = salt_ids_.find(std::string(salt));
  if (known == salt_ids_.end()) return 0;
  int32_t parent = top_of(known->second);
  int matched = 0;
  ++uses_;
  while (matched < max_pages && tokens_needed(matched) <= static_cast<int64_t>(tokens.size())) {
    const size_t begin = static_cast<size_t>(matched) * static_cast<size_t>(page_tokens_);
    const int32_t page = find(parent, tokens.subspan(begin, static_cast<size_t>(key_tokens_)));
    if (page == kNone) break;
    retain(page);
    node(page).last_use = uses_;
    pages.push_back(page);
    parent = page;
    ++matched;
  }
  return matched;
}

bool PrefixTree::insert(std::string_view salt, std::span<const int32_t> tokens, std::vector<int32_t>& pages,
                        int index) {
  const int32_t page = pages[static_cast<size_t>(index)];
  PLUMB_CHECK(static_cast<int64_t>(tokens.size()) >= tokens_needed(index), "a page was entered before it was full");
  PLUMB_CHECK(!node(page).in_tree, "a page was entered twice");
  if (pool_.suspect(page)) return false;
  if (index > 0 && !node(pages[static_cast<size_t>(index) - 1]).in_tree) return false;
  const int32_t parent = index > 0 ? pages[static_cast<size_t>(index) - 1] : top_of(salt_for_insert(salt));
  const auto own_key =
      tokens.subspan(static_cast<size_t>(index) * static_cast<size_t>(page_tokens_), static_cast<size_t>(key_tokens_));
  const int32_t known = find(parent, own_key);
  ++uses_;
  if (known != kNone) {
    retain(known);
    node(known).last_use = uses_;
    release(page);
    pages[static_cast<size_t>(index)] = known;
    return true;
  }
  pool_.retain(page);  // the tree's own reference
  link(page, parent, own_key);
  return true;
}

bool PrefixTree::allocate(int64_t count, std::vector<int32_t>& pages) {
  if (count <= 0) return true;
  if (available() < count) return false;
  while (pool_.free() < count) {
    PLUMB_CHECK(oldest_ != kNone, "pages held by the tree alone can't be evicted");
    evict(oldest_);
  }
  for (int64_t i = 0; i < count; ++i) pages.push_back(pool_.allocate());
  return true;
}

void PrefixTree::retain(int32_t page) {
  pool_.retain(page);
  refresh(page);
}

void PrefixTree::release(int32_t page) {
  pool_.release(page);
  if (node(page).in_tree) refresh(page);
}

void PrefixTree::link(int32_t page, int32_t parent, std::span<const int32_t> tokens) {
  std::ranges::copy(tokens, keys_.begin() + static_cast<ptrdiff_t>(page) * key_tokens_);
  const size_t slot = bucket(parent, tokens);
  node(page) = {.in_tree = true, .parent = parent, .next_in_bucket = buckets_[slot], .last_use = uses_};
  buckets_[slot] = page;
  ++cached_;
  if (parent >= 0) {
    ++node(parent).children;
    refresh(parent);
  } else {
    ++salts_[static_cast<size_t>(-2 - parent)].first_pages;
  }
  refresh(page);
}

// Takes a leaf out of the tree; the tree's reference is the caller's to release.
void PrefixTree::unlink(int32_t page) {
  PLUMB_CHECK(node(page).in_tree && node(page).children == 0, "only a leaf can leave the tree");
  const int32_t parent = node(page).parent;
  int32_t* link = &buckets_[bucket(parent, key(page))];
  while (*link != page) link = &node(*link).next_in_bucket;
  *link = node(page).next_in_bucket;
  node(page).in_tree = false;
  refresh(page);
  --cached_;
  if (parent >= 0) {
    --node(parent).children;
    refresh(parent);
    return;
  }
  const int32_t salt = -2 - parent;
  if (--salts_[static_cast<size_t>(salt)].first_pages > 0) return;
  salt_ids_.erase(salts_[static_cast<size_t>(salt)].name);
  free_salts_.push_back(salt);
}

void PrefixTree::evict(int32_t page) {
  unlink(page);
  pool_.release(page);
}

// Brings the node's place in the eviction list, and alone_, in line with its counts.
void PrefixTree::refresh(int32_t page) {
  Node& n = node(page);
  const bool alone = n.in_tree && pool_.references(page) == 1;
  if (alone != n.alone) alone_ += alone ? 1 : -1;
  n.alone = alone;
  const bool evictable = alone && n.children == 0;
  if (evictable == n.evictable) return;
  n.evictable = evictable;
  if (evictable) {
    list_insert(page);
  } else {
    list_remove(page);
  }
}

void PrefixTree::list_insert(int32_t page) {
  Node& n = node(page);
  int32_t after = newest_;  // the youngest that is not younger than this one
  while (after != kNone && node(after).last_use > n.last_use) after = node(after).older;
  n.older = after;
  n.newer = after != kNone ? node(after).newer : oldest_;
  (n.older != kNone ? node(n.older).newer : oldest_) = page;
  (n.newer != kNone ? node(n.newer).older : newest_) = page;
}

void PrefixTree::list_remove(int32_t page) {
  Node& n = node(page);
  (n.older != kNone ? node(n.older).newer : oldest_) = n.newer;
  (n.newer != kNone ? node(n.newer).older : newest_) = n.older;
  n.older = n.newer = kNone;
}

void PrefixTree::mark_suspect(int32_t page) {
  if (node(page).in_tree) {
    forget(page);
  } else {
    pool_.mark_suspect(page);
  }
}

void PrefixTree::forget(int32_t page) {
  enum : uint8_t { Unknown, Below, Elsewhere };
  std::vector<uint8_t> place(nodes_.size(), Unknown);  // faults are rare: allocating here is fine
  std::vector<int32_t> path{};
  place[static_cast<size_t>(page)] = Below;
  for (int32_t start = 0; start < static_cast<int32_t>(nodes_.size()); ++start) {
    if (!node(start).in_tree) continue;
    path.clear();
    int32_t at = start;
    while (at >= 0 && place[static_cast<size_t>(at)] == Unknown) {
      path.push_back(at);
      at = node(at).parent;
    }
    const uint8_t found = at >= 0 ? place[static_cast<size_t>(at)] : static_cast<uint8_t>(Elsewhere);
    for (const int32_t seen : path) place[static_cast<size_t>(seen)] = found;
  }
  for (int32_t start = 0; start < static_cast<int32_t>(nodes_.size()); ++start) {  // leaves first, then upwards
    int32_t at = start;
    while (at >= 0 && node(at).in_tree && place[static_cast<size_t>(at)] == Below && node(at).children == 0) {
      const int32_t parent = node(at).parent;
      pool_.mark_suspect(at);
      evict(at);
      at = parent;
    }
  }
}

// One list of plain comparisons, each with its own sentence: splitting it would only scatter it.
std::string PrefixTree::broken_invariant() const {  // NOLINT(readability-function-cognitive-complexity)
  std::vector<int32_t> children(nodes_.size()), first_pages(salts_.size());
  int64_t cached = 0, alone = 0, evictable = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    const int32_t page = static_cast<int32_t>(i);
    const std::string name = "page " + std::to_string(page);
    if (!n.in_tree && (n.alone || n.evictable)) return name + " is evictable outside the tree";
    if (!n.in_tree) continue;
    ++cached;
    if (pool_.references(page) < 1) return name + " is in the tree without its reference";
    if (pool_.suspect(page)) return name + " is suspect and shared";
    if (find(n.parent, key(page)) != page) return name + " is not found by its key";
    if (n.alone != (pool_.references(page) == 1)) return name + " has a stale count";
    if (n.parent >= 0 && !node(n.parent).in_tree) return name + " has lost its parent";
    if (n.parent >= 0 && node(n.parent).alone && !n.alone) return name + " is held without its parent";
    if (n.parent >= 0) ++children[static_cast<size_t>(n.parent)];
    if (n.parent < 0) ++first_pages[static_cast<size_t>(-2 - n.parent)];
    alone += n.alone ? 1 : 0;
    evictable += n.evictable ? 1 : 0;
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    if (n.in_tree && n.children != children[i]) return "page " + std::to_string(i) + " miscounts its children";
    if (n.evictable != (n.alone && children[i] == 0)) return "page " + std::to_string(i) + " is wrongly evictable";
  }
  for (const auto& [name, salt] : salt_ids_) {
    if (first_pages[static_cast<size_t>(salt)] == 0) return "salt " + name + " holds nothing";
    if (salts_[static_cast<size_t>(salt)].first_pages != first_pages[static_cast<size_t>(salt)]) {
      return "salt " + name + " miscounts its pages";
    }
  }
  int64_t listed = 0;
  for (int32_t at = oldest_; at != kNone && listed <= cached; at = node(at).newer) {
    ++listed;
    const int32_t next = node(at).newer;
    if (next == kNone ? newest_ != at : node(next).older != at) return "the eviction list is torn";
    if (next != kNone && node(next).last_use < node(at).last_use) return "the eviction list is out of order";
  }
  if (cached != cached_ || alone != alone_ || listed != evictable) return "the tree's totals are wrong";
  return "";
}

int32_t PrefixTree::salt_for_insert(std::string_view salt) {
  const auto [entry, fresh] = salt_ids_.try_emplace(std::string(salt), 0);
  if (!fresh) return entry->second;
  if (free_salts_.empty()) {
    free_salts_.push_back(static_cast<int32_t>(salts_.size()));
    salts_.emplace_back();
  }
  entry->second = free_salts_.back();
  free_salts_.pop_back();
  salts_[static_cast<size_t>(entry->second)] = {.name = std::string(salt), .first_pages = 0};
  return entry->second;
}

}  // namespace plumb
