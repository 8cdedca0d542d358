#include "text/bpe.h"

#include <queue>

namespace plumb {

Bpe::Bpe(IdByText of_bytes, const std::vector<Merge>& merges, bool ignore_merges)
    : of_bytes_(std::move(of_bytes)), ignore_merges_(ignore_merges) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto it = of_bytes_.find(std::string(1, static_cast<char>(byte)));
    byte_id_[static_cast<size_t>(byte)] = it == of_bytes_.end() ? -1 : it->second;
  }
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank)
    merges_[pair_key(merges[rank].left, merges[rank].right)] = {static_cast<int32_t>(rank), merges[rank].merged};
}

namespace {

struct Symbol {
  int32_t id = 0;
  int32_t previous = -1;
  int32_t next = -1;
  bool alive = true;
};

struct Candidate {
  int32_t rank = 0;
  int32_t position = 0;
  int32_t merged = 0;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};
using Queue = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

}  // namespace

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (ignore_merges_)
    if (const auto it = of_bytes_.find(piece); it != of_bytes_.end()) {
      ids.push_back(it->second);
      return;
    }
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    const int32_t id = byte_id_[static_cast<uint8_t>(c)];
    if (id < 0) continue;
    const auto i = static_cast<int32_t>(symbols.size());
    symbols.push_back({.id = id, .previous = i - 1, .next = i + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::vector<Candidate> storage;
  storage.reserve(symbols.size());
  Queue queue(std::greater<>{}, std::move(storage));
  const auto offer = [&](int32_t left, int32_t right) {
    const auto it = merges_.find(pair_key(symbols[left].id, symbols[right].id));
    if (it != merges_.end()) queue.push({it->second.rank, left, it->second.merged});
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) offer(i, i + 1);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.position];
    if (!left.alive || left.next < 0) continue;
    // The pair may have changed since it was queued; then it counts only if it still makes the same token.
    const auto it = merges_.find(pair_key(left.id, symbols[left.next].id));
    if (it == merges_.end() || it->second.merged != best.merged) continue;
    Symbol& right = symbols[left.next];
    left.id = best.merged;
    right.alive = false;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = best.position;
    if (left.previous >= 0) offer(left.previous, best.position);
    if (left.next >= 0) offer(best.position, left.next);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace plumb
