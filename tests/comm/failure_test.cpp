// Ranks that end, hang, or do something else than the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/collectives.h"
#include "support/ranks.h"

namespace plumb::testing {
namespace {

using ::testing::HasSubstr;

TEST(RankFailure, OneThatIsGoneIsNamedByAllAtOnce) {
  auto ranks = joined_ranks(4);
  ranks[2].reset();  // as a process that ends: its sockets are closed
  ranks.erase(ranks.begin() + 2);
  on_each_rank(ranks, [](Communicator& comm) {
    float value = 1;
    const Status status = all_reduce(comm, std::span(&value, 1));
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::Peer);
    EXPECT_THAT(status.error().what, HasSubstr("rank 2 is gone"));
    EXPECT_TRUE(comm.failure());
  });
}

TEST(RankFailure, OneThatHangsMissesTheDeadlineAndIsNamed) {
  auto ranks = joined_ranks(4, 300);
  on_each_rank(ranks, [](Communicator& comm) {
    if (comm.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    float value = 1;
    const Status status = all_reduce(comm, std::span(&value, 1));
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().what, HasSubstr("rank 1"));
    EXPECT_THAT(status.error().what, ::testing::Not(HasSubstr("rank 3")));
  });
}

// A rank that only waits for the leader hears of a third one's end without being told.
TEST(RankFailure, AnEndIsNoticedByThoseWhoWaitForSomebodyElse) {
  auto ranks = joined_ranks(3);
  ranks.pop_back();
  int told = 0;
  const Status status = broadcast(*ranks[1], 0, std::as_writable_bytes(std::span(&told, 1)));
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().what, HasSubstr("rank 2 is gone"));
}

TEST(RankFailure, TheFirstCauseTravels) {
  auto ranks = joined_ranks(3);
  ranks[0]->fail({Code::Verification, "layer 3 differs between the ranks", "rank 1 has other bits", {}});
  ranks[0].reset();
  for (const int rank : {1, 2}) {
    float value = 1;
    const Status status = all_reduce(*ranks[static_cast<size_t>(rank)], std::span(&value, 1));
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().what, HasSubstr("layer 3 differs between the ranks: rank 1 has other bits"));
  }
}

TEST(RankFailure, TheFirstFailureIsTheLastExchange) {
  auto ranks = joined_ranks(2, 50);
  float value = 1;
  ASSERT_FALSE(all_reduce(*ranks[0], std::span(&value, 1)));
  const auto begin = std::chrono::steady_clock::now();
  ranks[0]->set_deadline(std::chrono::hours(1));
  const Status again = all_reduce(*ranks[0], std::span(&value, 1));
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().what, HasSubstr("rank 1"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

TEST(RankFailure, RanksOutOfStepAreFoundOut) {
  auto ranks = joined_ranks(2);
  std::atomic<int> complaints{0};
  on_each_rank(ranks, [&](Communicator& comm) {
    std::vector<float> values(comm.rank() == 0 ? 8 : 9, 1.0f);
    const Status status = all_reduce(comm, values);
    if (status) return;
    EXPECT_THAT(status.error().to_string(), ::testing::AnyOf(HasSubstr("are not in step"), HasSubstr("is gone")));
    ++complaints;
  });
  EXPECT_GE(complaints, 1);
}

}  // namespace
}  // namespace plumb::testing
