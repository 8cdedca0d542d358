#include "base/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace plumb {
namespace {

TEST(Split, CoversEveryItemOnceAndEvenly) {
  for (const int64_t items : {0, 1, 7, 64, 1000})
    for (const int parts : {1, 2, 3, 16}) {
      int64_t at = 0;
      for (int part = 0; part < parts; ++part) {
        const Range range = split(items, part, parts);
        EXPECT_EQ(range.begin, at);
        EXPECT_GE(range.end - range.begin, items / parts);
        EXPECT_LE(range.end - range.begin, items / parts + 1);
        at = range.end;
      }
      EXPECT_EQ(at, items);
    }
}

TEST(PhysicalCores, AreAtLeastOneAndNoMoreThanTheSystemHas) {
  EXPECT_GE(physical_cores(), 1);
  EXPECT_LE(physical_cores(), static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(ThreadPool().size(), physical_cores());
}

TEST(ThreadPool, RunsEveryPartOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    for (const int parts : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> count(static_cast<size_t>(parts));
      pool.parallel_parts(parts, [&](int part, int of) {
        EXPECT_EQ(of, parts);
        ++count[static_cast<size_t>(part)];
      });
      for (const auto& c : count) EXPECT_EQ(c, 1) << threads << " threads, " << parts << " parts";
    }
  }
}

// Parts 1 and 4 belong to one worker, which is held inside part 1 until part 4 is done: the others have to do it.
TEST(ThreadPool, WhatAWorkerHasNotBegunIsTakenOver) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    std::atomic<bool> done{false};
    bool seen = false;
    pool.parallel_parts(6, [&](int part, int) {
      if (part == 4) done = true;
      if (part != 1) return;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!done && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      seen = done;
    });
    ASSERT_TRUE(seen);
  }
}

// Workers that come too late for a round find nothing of it, and may begin with the next one.
TEST(ThreadPool, LateWorkersDoNothingTwice) {
  ThreadPool pool(8);  // more than there are cores
  std::array<int, 16> count{};
  for (int round = 1; round <= 5000; ++round) {
    const int parts = 2 + round % 15;
    pool.parallel_parts(parts, [&](int part, int) { ++count[static_cast<size_t>(part)]; });
    for (int part = 0; part < parts; ++part) ASSERT_EQ(std::exchange(count[static_cast<size_t>(part)], 0), 1) << round;
  }
}

// What the parts wrote is seen by the caller, and what the caller wrote by the next round's parts, without other
// synchronisation: the thread sanitizer's build turns a missing barrier into a failure.
TEST(ThreadPool, RoundsAreOrderedForPlainMemory) {
  ThreadPool pool(4);
  std::vector<int64_t> data(4 * 64, 0);
  for (int round = 1; round <= 2000; ++round) {
    pool.parallel([&](int worker, int workers) {
      const Range mine = split(static_cast<int64_t>(data.size()), worker, workers);
      for (int64_t i = mine.begin; i < mine.end; ++i) data[static_cast<size_t>(i)] += round;
    });
    std::rotate(data.begin(), data.begin() + 1, data.end());  // the caller moves every item between the rounds
  }
  EXPECT_THAT(data, testing::Each(int64_t{2000} * 2001 / 2));
}

// Workers asleep (long pause) and workers still spinning (no pause) must both be found.
TEST(ThreadPool, SleepingWorkersWakeUp) {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  for (int round = 0; round < 20; ++round) {
    if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.parallel([&](int worker, int) {
      if (worker == 1 && round % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // caller sleeps
      ++done;
    });
    ASSERT_EQ(done, 2 * (round + 1));
  }
}

TEST(ThreadPool, SumIsTheSameInEveryRun) {
  std::vector<float> x(10007);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1.0f / static_cast<float>(i + 1);
  ThreadPool pool(3);
  const auto sum = [&] {
    std::vector<float> partial(16, 0.0f);
    pool.parallel_parts(16, [&](int part, int parts) {
      const Range range = split(static_cast<int64_t>(x.size()), part, parts);
      for (int64_t i = range.begin; i < range.end; ++i) partial[static_cast<size_t>(part)] += x[static_cast<size_t>(i)];
    });
    return std::accumulate(partial.begin(), partial.end(), 0.0f);
  };
  const float first = sum();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sum(), first);
}

TEST(ThreadPoolDeathTest, PartThatCallsBackIntoThePoolIsOurBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.parallel([&](int worker, int) {
          if (worker == 0) pool.parallel([](int, int) {});
        });
      },
      "two callers at once");
}

TEST(JobPool, RunsEveryJobItTookEvenWhenDestroyed) {
  std::atomic<int> done{0};
  int taken = 0;
  {
    JobPool pool(2, 100);
    for (int i = 0; i < 100; ++i) taken += pool.try_submit([&done] { ++done; }) ? 1 : 0;
  }
  EXPECT_EQ(taken, 100);
  EXPECT_EQ(done, taken);
}

TEST(JobPool, FullQueueRefusesAndLeavesTheJobWithItsOwner) {
  std::promise<void> started, release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<int> done{0};
  JobPool pool(1, 1);
  ASSERT_TRUE(pool.try_submit([&started, released] {
    started.set_value();
    released.wait();
  }));
  started.get_future().wait();
  EXPECT_TRUE(pool.try_submit([&done] { ++done; }));
  EXPECT_EQ(pool.waiting(), 1u);
  std::promise<void> finished;
  std::function<void()> refused = [&finished] { finished.set_value(); };
  EXPECT_FALSE(pool.try_submit(std::move(refused)));
  ASSERT_TRUE(refused) << "a refused job must stay whole";
  release.set_value();
  while (!pool.try_submit(std::move(refused))) std::this_thread::yield();
  finished.get_future().wait();
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace plumb
