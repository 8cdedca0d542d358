#include "engine/scheduler.h"

#include <algorithm>

namespace plumb {

namespace {

struct Pass {
  SequenceQueues& queues;
  PrefixTree& cache;
  const SchedulerLimits& limits;
  Batch& batch;

  int rows_left() const { return limits.max_batch_tokens - batch.rows; }
};

bool reserve(Pass& pass, Sequence& s, int positions) {
  const int64_t missing = pages_for(positions, pass.limits.page_tokens) - static_cast<int64_t>(s.pages.size());
  return pass.cache.allocate(missing, s.pages);
}

void add(Pass& pass, Sequence& s, int count, int first_logit) {
  pass.batch.items.push_back(
      {.sequence = &s, .begin = s.computed, .count = count, .first_logit = first_logit, .first_row = pass.batch.rows});
  pass.batch.rows += count;
}

void preempt_newest(Pass& pass) {
  Sequence* victim = pass.queues.running.back();
  pass.queues.running.pop_back();
  release_pages(*victim, pass.cache);
  insert_sorted(pass.queues.waiting, victim);
  pass.batch.preempted.push_back(victim);
}

// The list is in order, so whoever must give way (perhaps the sequence itself) is not in the batch yet.
void add_decodes(Pass& pass) {
  std::vector<Sequence*>& running = pass.queues.running;
  for (size_t i = 0; i < running.size(); ++i) {
    Sequence& s = *running[i];
    if (!s.decoding()) continue;
    if (s.draft_count > 0 && !reserve(pass, s, s.known() + s.draft_count)) s.draft_count = 0;
    bool fits = reserve(pass, s, s.known());
    while (!fits && i < running.size()) {
      preempt_newest(pass);
      fits = i < running.size() && reserve(pass, s, s.known());
    }
    if (fits) add(pass, s, 1 + s.draft_count, 0);
  }
}

// What a prompt may count on in a step, when there are rows for it.
int share_of(const Pass& pass, const Sequence& s) {
  const int share = std::max(pass.limits.chunk_tokens / 4, 1);
  return std::min(s.uncomputed(), share);
}

void add_prefill(Pass& pass, Sequence& s, int rows) {
  int count = std::min({s.uncomputed(), pass.limits.chunk_tokens, rows});
  int first_logit = count;
  if (s.scores_prompt()) {
    // Rows that were scored before a preemption need no logits again, but the budget is kept simple: it counts them.
    count = std::min(count, pass.limits.prompt_logit_rows - pass.batch.prompt_logit_rows);
    if (count <= 0) return;
    pass.batch.prompt_logit_rows += count;
    first_logit = std::min(count, std::max(0, s.prompt_logprobs_done - s.computed));
  }
  if (count <= 0) return;
  const bool completes = count == s.uncomputed();
  add(pass, s, count, completes ? std::min(first_logit, count - 1) : first_logit);
}

bool admit(Pass& pass, Sequence& s) {
  const bool alone = pass.queues.running.empty();
  if (!alone && pass.cache.available() <= s.blocked_at) return false;
  // One token at least is computed, so that there are logits; scoring a prompt needs all of them.
  const int most =
      s.request.prompt_logprobs >= 0 || !pass.limits.prefix_cache ? 0 : (s.known() - 1) / pass.limits.page_tokens;
  const int matched = pass.cache.match(s.request.cache_salt, s.tokens, most, s.pages);
  const int64_t missing = pages_for(s.known(), pass.limits.page_tokens) - matched;
  // A page for each running sequence stays back: admitting one only to preempt it in the next step helps nobody.
  const int64_t kept_back = static_cast<int64_t>(pass.queues.running.size());
  if (pass.cache.available() < missing + kept_back || !pass.cache.allocate(missing, s.pages)) {
    release_pages(s, pass.cache);
    s.blocked_at = pass.cache.available();
    return false;
  }
  s.blocked_at = -1;
  s.tree_pages = matched;
  s.tree_closed = false;
  s.computed = matched * pass.limits.page_tokens;
  return true;
}

// Rows that the prompts before `s` count on.
int rows_before(const Pass& pass, const Sequence& s) {
  int rows = 0;
  for (const Sequence* prompt : pass.batch.prompts)
    if (runs_before(*prompt, s)) rows += share_of(pass, *prompt);
  return rows;
}

void admit_waiting(Pass& pass) {
  std::vector<Sequence*>& waiting = pass.queues.waiting;
  size_t taken = 0;
  while (taken < waiting.size() && static_cast<int>(pass.queues.running.size()) < pass.limits.max_running) {
    Sequence* s = waiting[taken];
    if (rows_before(pass, *s) >= pass.rows_left() || !admit(pass, *s)) break;
    ++taken;
    insert_sorted(pass.queues.running, s);
    insert_sorted(pass.batch.prompts, s);
    pass.batch.admitted.push_back(s);
  }
  waiting.erase(waiting.begin(), waiting.begin() + static_cast<ptrdiff_t>(taken));
}

void add_prompts(Pass& pass) {
  int spare = pass.rows_left();  // beyond the shares
  for (const Sequence* s : pass.batch.prompts) spare -= share_of(pass, *s);
  for (Sequence* s : pass.batch.prompts) {
    const int share = std::min(share_of(pass, *s), pass.rows_left());
    const int more = std::clamp(spare, 0, std::min(s->uncomputed(), pass.limits.chunk_tokens) - share);
    spare -= more;
    add_prefill(pass, *s, std::min(share + more, pass.rows_left()));
  }
}

}  // namespace

void insert_sorted(std::vector<Sequence*>& list, Sequence* sequence) {
  const auto after = std::upper_bound(list.begin(), list.end(), sequence,
                                      [](const Sequence* a, const Sequence* b) { return runs_before(*a, *b); });
  list.insert(after, sequence);
}

void release_pages(Sequence& sequence, PrefixTree& cache) {
  // Last page first: in the tree a page is never held without the pages before it.
  for (size_t i = sequence.pages.size(); i > 0; --i) cache.release(sequence.pages[i - 1]);
  sequence.pages.clear();
  sequence.tree_pages = 0;
  sequence.synced_pages = 0;
  sequence.computed = 0;
  sequence.draft_count = 0;
}

void schedule(SequenceQueues& queues, PrefixTree& cache, const SchedulerLimits& limits, Batch& batch) {
  batch.items.clear();
  batch.preempted.clear();
  batch.admitted.clear();
  batch.prompts.clear();
  batch.rows = 0;
  batch.prompt_logit_rows = 0;
  Pass pass{.queues = queues, .cache = cache, .limits = limits, .batch = batch};
  add_decodes(pass);
  for (Sequence* s : queues.running)
    if (!s->decoding()) batch.prompts.push_back(s);
  // After a preemption there is no page to spare for newcomers.
  if (batch.preempted.empty()) admit_waiting(pass);
  add_prompts(pass);
}

}  // namespace plumb
