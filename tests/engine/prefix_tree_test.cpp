#include "engine/prefix_tree.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace plumb {
namespace {

constexpr int kPage = 4;

std::vector<int32_t> sequence_of(int length, int32_t first = 0) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(first + i);
  return tokens;
}

// As a sequence would: compute all of `tokens`, enter the full pages, end.
void compute_and_end(PrefixTree& tree, const std::string& salt, const std::vector<int32_t>& tokens) {
  std::vector<int32_t> pages;
  int index = tree.match(salt, tokens, 1000, pages);
  const int64_t all = (static_cast<int64_t>(tokens.size()) + kPage - 1) / kPage;
  ASSERT_TRUE(tree.allocate(all - index, pages));
  for (; tree.tokens_needed(index) <= static_cast<int64_t>(tokens.size()); ++index) {
    ASSERT_TRUE(tree.insert(salt, tokens, pages, index));
  }
  for (size_t i = pages.size(); i > 0; --i) tree.release(pages[i - 1]);
  ASSERT_EQ(tree.broken_invariant(), "");
}

int matched(PrefixTree& tree, const std::string& salt, const std::vector<int32_t>& tokens, int most = 1000) {
  std::vector<int32_t> pages;
  const int count = tree.match(salt, tokens, most, pages);
  EXPECT_EQ(static_cast<size_t>(count), pages.size());
  for (size_t i = pages.size(); i > 0; --i) tree.release(pages[i - 1]);
  return count;
}

TEST(PrefixTree, FindsFullPagesOnly) {
  PagePool pool(10);
  PrefixTree tree(pool, kPage, false);
  compute_and_end(tree, "", sequence_of(11));
  EXPECT_EQ(matched(tree, "", sequence_of(11)), 2);
  EXPECT_EQ(matched(tree, "", sequence_of(8)), 2);
  EXPECT_EQ(matched(tree, "", sequence_of(7)), 1);
  EXPECT_EQ(matched(tree, "", sequence_of(8), 1), 1);
  EXPECT_EQ(matched(tree, "", sequence_of(11, 1)), 0);
  EXPECT_EQ(tree.cached(), 2);
  EXPECT_EQ(tree.available(), 10);
}

TEST(PrefixTree, SharesInsideOneSaltOnly) {
  PagePool pool(10);
  PrefixTree tree(pool, kPage, false);
  compute_and_end(tree, "alice", sequence_of(8));
  EXPECT_EQ(matched(tree, "alice", sequence_of(8)), 2);
  EXPECT_EQ(matched(tree, "bob", sequence_of(8)), 0);
  EXPECT_EQ(matched(tree, "", sequence_of(8)), 0);
  compute_and_end(tree, "bob", sequence_of(4));
  EXPECT_EQ(matched(tree, "bob", sequence_of(8)), 1);
}

// The MTP layer's last slot of a page comes from the next page's first token.
TEST(PrefixTree, WithAnMtpLayerAPageIsFoundForItsOwnNextTokenOnly) {
  PagePool pool(10);
  PrefixTree tree(pool, kPage, true);
  std::vector<int32_t> tokens = sequence_of(10);
  compute_and_end(tree, "", tokens);
  EXPECT_EQ(matched(tree, "", tokens), 2);
  EXPECT_EQ(matched(tree, "", sequence_of(8)), 1) << "the token after the second page isn't known yet";
  tokens[8] = 77;  // parts exactly at the page's end
  EXPECT_EQ(matched(tree, "", tokens), 1);
  compute_and_end(tree, "", tokens);
  EXPECT_EQ(matched(tree, "", tokens), 2);
  EXPECT_EQ(matched(tree, "", sequence_of(10)), 2);
  EXPECT_EQ(tree.cached(), 3);
}

TEST(PrefixTree, TheSamePrefixComputedTwiceIsHeldOnce) {
  PagePool pool(10);
  PrefixTree tree(pool, kPage, false);
  const std::vector<int32_t> tokens = sequence_of(9);
  std::vector<int32_t> a, b;
  ASSERT_TRUE(tree.allocate(3, a));
  ASSERT_TRUE(tree.allocate(3, b));
  ASSERT_TRUE(tree.insert("", tokens, a, 0));
  ASSERT_TRUE(tree.insert("", tokens, b, 0));
  ASSERT_TRUE(tree.insert("", tokens, b, 1));
  ASSERT_TRUE(tree.insert("", tokens, a, 1));
  EXPECT_EQ(a[0], b[0]);
  EXPECT_EQ(a[1], b[1]);
  EXPECT_NE(a[2], b[2]);
  EXPECT_EQ(pool.free(), 6);
  EXPECT_EQ(tree.broken_invariant(), "");
}

TEST(PrefixTree, EvictsTheLongestUnusedLeafFirst) {
  PagePool pool(6);
  PrefixTree tree(pool, kPage, false);
  compute_and_end(tree, "", sequence_of(8, 100));
  compute_and_end(tree, "", sequence_of(8, 200));
  EXPECT_EQ(matched(tree, "", sequence_of(8, 100)), 2);  // used again: now the younger one
  std::vector<int32_t> pages;
  ASSERT_TRUE(tree.allocate(3, pages));  // two are free
  EXPECT_EQ(matched(tree, "", sequence_of(8, 200)), 1) << "its second page had to go, its first did not";
  EXPECT_EQ(matched(tree, "", sequence_of(8, 100)), 2);
  EXPECT_EQ(tree.broken_invariant(), "");
}

TEST(PrefixTree, NeverEvictsWhatSomebodyRefersTo) {
  PagePool pool(4);
  PrefixTree tree(pool, kPage, false);
  compute_and_end(tree, "", sequence_of(8));
  std::vector<int32_t> held, more;
  ASSERT_EQ(tree.match("", sequence_of(8), 1, held), 1);
  EXPECT_EQ(tree.available(), 3);
  EXPECT_FALSE(tree.allocate(4, more));
  EXPECT_TRUE(more.empty()) << "all or none";
  EXPECT_TRUE(tree.allocate(3, more));
  EXPECT_TRUE(tree.contains(held[0]));
  EXPECT_EQ(tree.broken_invariant(), "");
}

TEST(PrefixTree, ASuspectPageTakesAllThatFollowItOutOfTheTree) {
  PagePool pool(12);
  PrefixTree tree(pool, kPage, false);
  std::vector<int32_t> fork = sequence_of(12);
  fork[8] = 99;
  compute_and_end(tree, "", sequence_of(12));
  compute_and_end(tree, "", fork);
  compute_and_end(tree, "other", sequence_of(8));
  std::vector<int32_t> held;
  ASSERT_EQ(tree.match("", fork, 3, held), 3);
  tree.mark_suspect(held[1]);
  EXPECT_EQ(tree.broken_invariant(), "");
  EXPECT_EQ(matched(tree, "", sequence_of(12)), 1);
  EXPECT_EQ(matched(tree, "other", sequence_of(8)), 2);
  EXPECT_EQ(pool.quarantined().size(), 1u) << "the other fork's last page, which nobody held";
  EXPECT_FALSE(tree.insert("", fork, held, 1)) << "a suspect page is not shared again";
  for (size_t i = held.size(); i > 0; --i) tree.release(held[i - 1]);
  EXPECT_EQ(pool.quarantined().size(), 3u);
  pool.readmit_all();
  EXPECT_EQ(tree.available(), 12);
}

// Random life of many sequences against a model that only remembers what was written to each page.
class PrefixTreeHistory : public ::testing::TestWithParam<std::tuple<int, bool>> {};

struct Written {
  std::string salt{};
  std::vector<int32_t> prefix{};  // up to the end of the page, and the next token with an MTP layer
  auto operator<=>(const Written&) const = default;
};

struct Holder {
  std::string salt{};
  std::vector<int32_t> tokens{}, pages{};
  int entered = 0;
  bool closed = false;
};

class History {
 public:
  History(int seed, bool mtp) : random_(static_cast<uint32_t>(seed)), mtp_(mtp), pool_(24), tree_(pool_, kPage, mtp) {}

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      const int what = below(10);
      if (what < 4) arrive();
      if (what >= 4 && what < 8 && !holders_.empty()) enter(holders_[pick()]);
      if (what == 8 && !holders_.empty()) leave(pick());
      if (what == 9 && below(8) == 0 && !holders_.empty()) poison(pick());
      ASSERT_EQ(tree_.broken_invariant(), "");
      ASSERT_EQ(pool_.broken_invariant(), "");
    }
    while (!holders_.empty()) leave(0);
    ASSERT_EQ(tree_.available(), 24);
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  size_t pick() { return static_cast<size_t>(below(static_cast<int>(holders_.size()))); }
  Written written(const std::string& salt, const std::vector<int32_t>& tokens, int index) const {
    const auto end = tokens.begin() + (index + 1) * kPage + (mtp_ ? 1 : 0);
    return {salt, {tokens.begin(), end}};
  }

  void arrive() {
    Holder h{.salt = below(3) == 0 ? "s" : ""};
    for (int length = 1 + below(20); length > 0; --length) h.tokens.push_back(below(2));
    const int known = static_cast<int>(h.tokens.size());
    const int most = (known - 1) / kPage;
    int expected = 0;
    while (expected < most && tree_.tokens_needed(expected) <= known && shared(written(h.salt, h.tokens, expected))) {
      ++expected;
    }
    h.entered = tree_.match(h.salt, h.tokens, most, h.pages);
    ASSERT_EQ(h.entered, expected);
    for (int i = 0; i < h.entered; ++i) {
      ASSERT_EQ(content_[h.pages[static_cast<size_t>(i)]], written(h.salt, h.tokens, i));
    }
    const int64_t missing = (known + kPage - 1) / kPage - h.entered;
    const bool fits = tree_.available() >= missing;
    ASSERT_EQ(tree_.allocate(missing, h.pages), fits);
    for (size_t i = static_cast<size_t>(h.entered); i < h.pages.size(); ++i) {
      content_[h.pages[i]] = {};  // whatever it held is lost
    }
    holders_.push_back(std::move(h));
    if (!fits) leave(holders_.size() - 1);
  }

  // Is there a page in the tree that was written with exactly this?
  bool shared(const Written& wanted) const {
    for (const auto& [page, held] : content_) {
      if (held == wanted && tree_.contains(page)) return true;
    }
    return false;
  }

  void enter(Holder& h) {
    if (h.closed || tree_.tokens_needed(h.entered) > static_cast<int64_t>(h.tokens.size())) return;
    const int index = h.entered;
    content_[h.pages[static_cast<size_t>(index)]] = written(h.salt, h.tokens, index);
    if (!tree_.insert(h.salt, h.tokens, h.pages, index)) {
      h.closed = true;
      return;
    }
    ++h.entered;
    ASSERT_EQ(content_[h.pages[static_cast<size_t>(index)]], written(h.salt, h.tokens, index));
  }

  void leave(size_t which) {
    Holder& h = holders_[which];
    for (size_t i = h.pages.size(); i > 0; --i) tree_.release(h.pages[i - 1]);
    holders_.erase(holders_.begin() + static_cast<ptrdiff_t>(which));
    pool_.readmit_all();
  }

  void poison(size_t which) {
    for (const int32_t page : holders_[which].pages) tree_.mark_suspect(page);
    leave(which);
  }

  std::mt19937 random_;
  bool mtp_ = false;
  PagePool pool_;
  PrefixTree tree_;
  std::map<int32_t, Written> content_{};
  std::vector<Holder> holders_{};
};

TEST_P(PrefixTreeHistory, FindsExactlyWhatWasWritten) {
  History(std::get<0>(GetParam()), std::get<1>(GetParam())).run(3000);
}
INSTANTIATE_TEST_SUITE_P(Seeds, PrefixTreeHistory, ::testing::Combine(::testing::Range(1, 9), ::testing::Bool()));

}  // namespace
}  // namespace plumb
