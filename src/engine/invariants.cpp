#include "engine/invariants.h"

#include <algorithm>
#include <vector>

namespace plumb {

namespace {

std::string broken_sequence(const Sequence& s, bool running, const PrefixTree& cache, const SchedulerLimits& limits) {
  const std::string name = "sequence " + std::to_string(s.arrival);
  if (s.known() < s.prompt_tokens || s.prompt_tokens < 1) return name + " has lost tokens";
  if (s.computed < 0 || s.computed >= s.known()) return name + " has no token left to compute";
  if (s.computed > static_cast<int64_t>(s.pages.size()) * limits.page_tokens) return name + " lacks pages";
  if (s.tree_pages * limits.page_tokens > s.computed) return name + " shares rows that are not computed";
  if (s.draft_count < 0 || s.draft_count > kMaxDraftTokens) return name + " has too many drafts";
  if (s.draft_count > 0 && !s.decoding()) return name + " has drafts and nothing to verify them with";
  if (s.generated() >= s.request.max_tokens) return name + " runs past its max_tokens";
  if (!running && (!s.pages.empty() || s.slot >= 0 || s.computed > 0)) return name + " waits and holds pages";
  for (int i = 0; i < s.tree_pages; ++i) {
    const int32_t page = s.pages[static_cast<size_t>(i)];
    if (!cache.contains(page) && !cache.pool().suspect(page)) return name + " holds a page the tree has dropped";
  }
  return "";
}

}  // namespace

std::string broken_invariant(const SequenceQueues& queues, const PrefixTree& cache, const SchedulerLimits& limits) {
  std::vector<int32_t> references(static_cast<size_t>(cache.pool().total()));
  for (const std::vector<Sequence*>* list : {&queues.running, &queues.waiting}) {
    if (!std::is_sorted(list->begin(), list->end(),
                        [](const Sequence* a, const Sequence* b) { return runs_before(*a, *b); })) {
      return "a queue is out of order";
    }
    for (const Sequence* s : *list) {
      std::string broken = broken_sequence(*s, list == &queues.running, cache, limits);
      if (!broken.empty()) return broken;
      for (const int32_t page : s->pages) ++references[static_cast<size_t>(page)];
    }
  }
  if (static_cast<int>(queues.running.size()) > limits.max_running) return "too many sequences run";
  for (int32_t page = 0; page < static_cast<int32_t>(references.size()); ++page) {
    const int32_t wanted = references[static_cast<size_t>(page)] + (cache.contains(page) ? 1 : 0);
    if (cache.pool().references(page) != wanted) return "page " + std::to_string(page) + " is miscounted";
  }
  std::string broken = cache.pool().broken_invariant();
  return broken.empty() ? cache.broken_invariant() : broken;
}

}  // namespace plumb
