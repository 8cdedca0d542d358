#include "base/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace plumb {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

TEST(BoundedQueue, GivesItemsInOrderAndEmptiesItself) {
  BoundedQueue<int> queue(4);
  for (int i : {3, 1, 2}) EXPECT_TRUE(queue.try_push(int{i}));
  std::vector<int> out{99};
  EXPECT_EQ(queue.pop_all(out), 3u);
  EXPECT_THAT(out, ElementsAre(3, 1, 2));
  EXPECT_EQ(queue.pop_all(out), 0u);
  EXPECT_TRUE(out.empty());
}

TEST(BoundedQueue, FullQueueRefusesAndLeavesTheItemWithItsOwner) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.try_push(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
  std::vector<std::unique_ptr<int>> out;
  queue.pop_all(out);
  EXPECT_TRUE(queue.try_push(std::move(second)));
}

TEST(BoundedQueue, ClosedQueueTakesNothingNewButGivesWhatItHas) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.try_push(7));
  queue.close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.try_push(8));
  std::vector<int> out;
  EXPECT_EQ(queue.wait_pop_all(out, seconds(60)), 1u);
  EXPECT_EQ(queue.wait_pop_all(out, seconds(60)), 0u) << "a closed queue must not keep its consumer waiting";
}

TEST(BoundedQueue, StorageIsReusedOnceBothVectorsHaveGrown) {
  BoundedQueue<int> queue(8);
  std::vector<int> out;
  std::vector<const int*> storage;
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(queue.try_push(int{i}));
    ASSERT_EQ(queue.pop_all(out), 8u);
    storage.push_back(out.data());
  }
  EXPECT_EQ(storage[2], storage[4]);
  EXPECT_EQ(storage[3], storage[5]);
}

TEST(BoundedQueue, WaitEndsWithoutItemsWhenTheTimeIsOver) {
  BoundedQueue<int> queue(1);
  std::vector<int> out;
  EXPECT_EQ(queue.wait_pop_all(out, milliseconds(1)), 0u);
}

TEST(BoundedQueue, WakeBeforeAndDuringAWaitEndsIt) {
  BoundedQueue<int> queue(1);
  std::vector<int> out;
  queue.wake();
  EXPECT_EQ(queue.wait_pop_all(out, seconds(60)), 0u);
  std::thread waker([&queue] {
    std::this_thread::sleep_for(milliseconds(5));
    queue.wake();
  });
  EXPECT_EQ(queue.wait_pop_all(out, seconds(60)), 0u);
  waker.join();
}

// Law: what was accepted arrives once, in each producer's order, whatever the threads do.
TEST(BoundedQueue, ManyProducersLoseAndReorderNothing) {
  constexpr int kProducers = 4, kItems = 3000;
  BoundedQueue<int> queue(64);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p)
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kItems; ++i)
        while (!queue.try_push(p * kItems + i)) std::this_thread::yield();
    });
  std::vector<int> next(kProducers, 0), out;
  for (int got = 0; got < kProducers * kItems;) {
    got += static_cast<int>(queue.wait_pop_all(out, seconds(60)));
    ASSERT_LE(out.size(), queue.capacity());
    ASSERT_FALSE(out.empty()) << "a minute without an item";
    for (const int item : out) ASSERT_EQ(item % kItems, next[static_cast<size_t>(item / kItems)]++);
  }
  for (std::thread& thread : producers) thread.join();
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace plumb
