#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/invariants.h"

namespace plumb {
namespace {

constexpr int kPage = 4;

// The engine without a model: rows are "computed" by noting which prefix was written to which slot of the cache.
class Bench {
 public:
  Bench(int64_t pages, SchedulerLimits limits, bool mtp = false)
      : pool(pages), tree(pool, kPage, mtp), limits_(limits), cells_(static_cast<size_t>(pages * kPage)) {
    limits_.page_tokens = kPage;
  }

  Sequence& arrive(std::vector<int32_t> prompt, int max_tokens, int priority = 0) {
    auto s = std::make_unique<Sequence>();
    s->arrival = next_++;
    s->tokens = std::move(prompt);
    s->prompt_tokens = s->known();
    s->request.max_tokens = max_tokens;
    s->request.priority = priority;
    Sequence& out = *s;
    all.push_back(std::move(s));
    insert_sorted(queues.waiting, &out);
    return out;
  }

  void step(std::mt19937& random, int vocab, int drafts = 0) {
    schedule(queues, tree, limits_, batch);
    check_batch();
    for (const BatchItem& item : batch.items) compute(item, random, vocab, drafts);
    for (const BatchItem& item : batch.items) settle(*item.sequence);
    ASSERT_EQ(broken_invariant(queues, tree, limits_), "");
  }

  void end(Sequence& s) {
    release_pages(s, tree);
    s.slot = -1;
    std::erase(queues.running, &s);
    std::erase(queues.waiting, &s);
    ++ended[s.arrival];
    std::erase_if(all, [&](const auto& owned) { return owned.get() == &s; });
  }

  PagePool pool;
  PrefixTree tree;
  SequenceQueues queues{};
  Batch batch{};
  std::vector<std::unique_ptr<Sequence>> all{};
  std::map<uint64_t, int> ended{};
  int preemptions = 0, cached = 0;

 private:
  void check_batch() {
    int row = 0, prompt_logits = 0;
    std::map<const Sequence*, int> seen;
    for (const BatchItem& item : batch.items) {
      const Sequence& s = *item.sequence;
      ASSERT_EQ(item.first_row, row);
      row += item.count;
      ASSERT_EQ(item.begin, s.computed);
      ASSERT_GT(item.count, 0);
      ASSERT_LE(item.begin + item.count, static_cast<int>(s.pages.size()) * kPage) << "a row without a page";
      ASSERT_LE(item.begin + item.count, s.known() + s.draft_count);
      if (s.decoding()) {
        ASSERT_EQ(item.count, 1 + s.draft_count);
      } else {
        ASSERT_LE(item.count, limits_.chunk_tokens);
      }
      if (item.samples()) {
        ASSERT_LT(item.first_logit, item.count);
      }
      if (s.scores_prompt()) prompt_logits += item.count - item.first_logit;
      ASSERT_EQ(seen[&s]++, 0);
    }
    ASSERT_EQ(row, batch.rows);
    ASSERT_LE(row, limits_.max_batch_tokens);
    ASSERT_LE(prompt_logits, limits_.prompt_logit_rows);
    for (const Sequence* s : queues.running) {
      if (s->decoding()) {
        ASSERT_EQ(seen[s], 1) << "a running stream stalled";
      }
    }
    if (!queues.running.empty() || !queues.waiting.empty()) {
      ASSERT_TRUE(!batch.items.empty() || !batch.preempted.empty()) << "nobody gets on";
    }
    preemptions += static_cast<int>(batch.preempted.size());
    for (const Sequence* s : batch.admitted) cached += s->computed;
  }

  std::vector<int32_t>& cell(const Sequence& s, int position) {
    const int32_t page = s.pages[static_cast<size_t>(position / kPage)];
    return cells_[static_cast<size_t>(page * kPage + position % kPage)];
  }
  static int32_t token_at(const Sequence& s, int position) {
    return position < s.known() ? s.tokens[static_cast<size_t>(position)]
                                : s.drafts[static_cast<size_t>(position - s.known())];
  }

  void compute(const BatchItem& item, std::mt19937& random, int vocab, int drafts) {
    Sequence& s = *item.sequence;
    std::vector<int32_t> prefix;
    for (int position = 0; position < item.begin + item.count; ++position) {
      prefix.push_back(token_at(s, position));
      if (position >= item.begin) {
        cell(s, position) = prefix;
      } else {
        ASSERT_EQ(cell(s, position), prefix) << "another sequence wrote over position " << position;
      }
    }
    const int known = s.known();
    int row = 0;
    for (; row < item.count && s.generated() < s.request.max_tokens; ++row) {
      const int position = item.begin + row;
      if (position >= known && token_at(s, position) != s.drafts[static_cast<size_t>(position - known)]) break;
      s.computed = position + 1;
      if (position + 1 == s.known()) s.tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
      if (s.scores_prompt() && row >= item.first_logit) ++s.prompt_logprobs_done;
    }
    s.draft_count = 0;
    if (!s.decoding()) return;
    s.draft_count = std::min(drafts, s.request.max_tokens - s.generated() - 1);
    for (int i = 0; i < s.draft_count; ++i) {
      s.drafts[static_cast<size_t>(i)] = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
    }
  }

  void settle(Sequence& s) {
    while (limits_.prefix_cache && !s.tree_closed && (s.tree_pages + 1) * kPage <= s.computed &&
           tree.tokens_needed(s.tree_pages) <= s.known()) {
      if (tree.insert(s.request.cache_salt, s.tokens, s.pages, s.tree_pages)) {
        ++s.tree_pages;
      } else {
        s.tree_closed = true;
      }
    }
    if (s.generated() >= s.request.max_tokens) end(s);
  }

  SchedulerLimits limits_{};
  std::vector<std::vector<int32_t>> cells_;  // which prefix the slot's row was computed from
  uint64_t next_ = 0;
};

std::vector<int32_t> prompt_of(int length, int32_t token) {
  return std::vector<int32_t>(static_cast<size_t>(length), token);
}

TEST(Scheduler, ALongPromptDoesNotStallRunningStreams) {
  Bench bench(200, {.max_running = 4, .max_batch_tokens = 16, .chunk_tokens = 12});
  std::mt19937 random(1);
  const Sequence& stream = bench.arrive(prompt_of(4, 1), 60);
  bench.step(random, 9);
  bench.arrive(prompt_of(300, 2), 4);
  for (int i = 0; i < 25; ++i) {
    const int before = stream.generated();
    bench.step(random, 9);
    EXPECT_EQ(stream.generated(), before + 1);
    EXPECT_EQ(bench.batch.rows, 13) << "one decode and a whole chunk";
  }
}

TEST(Scheduler, RoomBesideALongPromptsChunkGoesToOthers) {
  Bench bench(200, {.max_running = 4, .max_batch_tokens = 16, .chunk_tokens = 10});
  std::mt19937 random(1);
  bench.arrive(prompt_of(300, 2), 4);
  const Sequence& small = bench.arrive(prompt_of(6, 3), 4);
  bench.step(random, 9);
  EXPECT_EQ(small.generated(), 1);
}

TEST(Scheduler, ManyLongPromptsLeaveRowsForAShortOne) {
  Bench bench(400, {.max_running = 8, .max_batch_tokens = 64, .chunk_tokens = 32});
  std::mt19937 random(1);
  for (int i = 0; i < 3; ++i) bench.arrive(prompt_of(300, 2 + i), 4);
  for (int i = 0; i < 3; ++i) bench.step(random, 9);
  EXPECT_EQ(bench.batch.rows, 64) << "together they fill every step";
  const Sequence& small = bench.arrive(prompt_of(6, 7), 4);
  bench.step(random, 9);
  EXPECT_EQ(small.generated(), 1);
  EXPECT_EQ(bench.batch.rows, 64);
}

TEST(Scheduler, AnotherClientsTurnComesBeforeThePromptsThatFillTheSteps) {
  Bench bench(800, {.max_running = 20, .max_batch_tokens = 64, .chunk_tokens = 32});
  std::mt19937 random(1);
  for (int i = 0; i < 12; ++i) bench.arrive(prompt_of(100, 2 + i), 4).turn = 1000 * i;
  bench.step(random, 9);
  Sequence& other = bench.arrive(prompt_of(6, 1), 4);
  std::erase(bench.queues.waiting, &other);
  other.turn = 500;
  insert_sorted(bench.queues.waiting, &other);
  bench.step(random, 9);
  EXPECT_EQ(other.generated(), 1);
}

TEST(Scheduler, RunsByPriorityThenByArrival) {
  Bench bench(200, {.max_running = 1, .max_batch_tokens = 8, .chunk_tokens = 8});
  std::mt19937 random(1);
  const Sequence& late = bench.arrive(prompt_of(3, 1), 9, 1);
  const Sequence& first = bench.arrive(prompt_of(3, 2), 2);
  const Sequence& second = bench.arrive(prompt_of(3, 3), 2);
  bench.step(random, 9);
  EXPECT_EQ(first.generated(), 1);
  EXPECT_EQ(second.generated() + late.generated(), 0);
  bench.step(random, 9);  // the first one ends
  bench.step(random, 9);
  EXPECT_EQ(second.generated(), 1);
  EXPECT_EQ(late.generated(), 0);
}

TEST(Scheduler, NobodyOvertakesTheFirstThatDoesNotFit) {
  Bench bench(10, {.max_running = 4, .max_batch_tokens = 64, .chunk_tokens = 64});
  std::mt19937 random(1);
  bench.arrive(prompt_of(20, 1), 8);
  bench.step(random, 9);
  const Sequence& large = bench.arrive(prompt_of(24, 2), 4);
  const Sequence& small = bench.arrive(prompt_of(2, 3), 2);
  bench.step(random, 9);
  EXPECT_TRUE(large.pages.empty());
  EXPECT_TRUE(small.pages.empty());
}

TEST(Scheduler, TheNewestGivesWayAndResumesThroughThePrefixTree) {
  Bench bench(8, {.max_running = 4, .max_batch_tokens = 64, .chunk_tokens = 64});
  std::mt19937 random(1);
  const Sequence& old = bench.arrive(prompt_of(11, 1), 12);
  const Sequence& young = bench.arrive(prompt_of(12, 2), 8);
  while (bench.preemptions == 0 && bench.all.size() == 2) bench.step(random, 9);
  ASSERT_EQ(bench.preemptions, 1);
  EXPECT_TRUE(young.pages.empty());
  EXPECT_FALSE(old.pages.empty());
  const std::vector<int32_t> kept = young.tokens;
  EXPECT_GT(young.generated(), 0);
  while (!bench.all.empty()) bench.step(random, 9);
  EXPECT_GT(bench.cached, 0) << "its pages were still known";
  EXPECT_EQ(bench.ended, (std::map<uint64_t, int>{{0, 1}, {1, 1}}));
}

class SchedulerHistory : public ::testing::TestWithParam<int> {};

// Any mixture of requests, priorities, cancels, drafts and small caches: running streams never stall, no slot is
// written by two owners, the invariants hold after each step, and every request ends exactly once.
TEST_P(SchedulerHistory, EveryRequestEndsOnce) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  const int drafts = below(4);
  const int running = 1 + below(6);
  const int64_t pages = 12 + below(30);
  Bench bench(pages,
              {.max_running = running,
               .max_batch_tokens = running * (1 + drafts) + 1 + below(20),
               .chunk_tokens = 1 + below(12),
               .prompt_logit_rows = 1 + below(4),
               .prefix_cache = below(4) != 0},
              drafts > 0);
  size_t arrived = 0;
  for (int step = 0; step < 400 && !HasFailure(); ++step) {
    if (step < 200 && below(2) == 0) {
      std::vector<int32_t> prompt;
      for (int length = 1 + below(24); length > 0; --length) prompt.push_back(below(8) == 0 ? 1 : 0);
      Sequence& s = bench.arrive(prompt, 1 + below(20), below(3) == 0 ? below(3) : 0);
      if (below(5) == 0) s.request.cache_salt = "other";
      if (below(6) == 0) s.request.prompt_logprobs = 1;
      ++arrived;
    }
    if (below(25) == 0 && !bench.all.empty()) {
      bench.end(*bench.all[static_cast<size_t>(below(static_cast<int>(bench.all.size())))]);
    }
    bench.step(random, 2, drafts);
  }
  for (int step = 0; step < 20000 && !bench.all.empty() && !HasFailure(); ++step) bench.step(random, 2, drafts);
  EXPECT_TRUE(bench.all.empty()) << "somebody waits for ever";
  EXPECT_EQ(bench.ended.size(), arrived);
  for (const auto& [arrival, times] : bench.ended) EXPECT_EQ(times, 1) << arrival;
  EXPECT_EQ(bench.tree.available(), pages);
  RecordProperty("requests", static_cast<int>(arrived));
  RecordProperty("preemptions", bench.preemptions);
  RecordProperty("cached_tokens", bench.cached);
}
INSTANTIATE_TEST_SUITE_P(Seeds, SchedulerHistory, ::testing::Range(0, 60));

}  // namespace
}  // namespace plumb
