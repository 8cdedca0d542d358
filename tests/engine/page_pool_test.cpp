#include "engine/page_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace plumb {
namespace {

TEST(PagePool, HandsOutEachPageOnceAndThenNone) {
  PagePool pool(5);
  std::set<int32_t> pages;
  for (int i = 0; i < 5; ++i) pages.insert(pool.allocate());
  EXPECT_EQ(pages, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.allocate(), -1);
  EXPECT_EQ(pool.free(), 0);
  pool.release(3);
  EXPECT_EQ(pool.allocate(), 3);
  EXPECT_EQ(pool.broken_invariant(), "");
}

TEST(PagePool, FreesAPageWithItsLastReference) {
  PagePool pool(2);
  const int32_t page = pool.allocate();
  pool.retain(page);
  pool.release(page);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.references(page), 1);
  pool.release(page);
  EXPECT_EQ(pool.free(), 2);
}

TEST(PagePool, KeepsASuspectPageBackUntilItIsWiped) {
  PagePool pool(2);
  const int32_t page = pool.allocate();
  pool.retain(page);
  pool.mark_suspect(page);
  pool.release(page);
  EXPECT_TRUE(pool.quarantined().empty()) << "somebody still refers to it";
  pool.release(page);
  EXPECT_EQ(pool.quarantined(), std::vector<int32_t>{page});
  EXPECT_EQ(pool.free(), 1);
  EXPECT_NE(pool.allocate(), page);
  EXPECT_EQ(pool.allocate(), -1);
  pool.readmit_all();
  EXPECT_FALSE(pool.suspect(page));
  EXPECT_EQ(pool.allocate(), page);
  EXPECT_EQ(pool.broken_invariant(), "");
}

TEST(PagePoolDeathTest, ReleasingTooOftenEndsTheProcess) {
  PagePool pool(1);
  const int32_t page = pool.allocate();
  pool.release(page);
  EXPECT_DEATH(pool.release(page), "once too often");
  EXPECT_DEATH(pool.retain(page), "without an owner");
}

}  // namespace
}  // namespace plumb
