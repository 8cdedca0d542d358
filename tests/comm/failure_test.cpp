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

// As a process that dies: its sockets are closed, and nobody says goodbye.
std::vector<std::unique_ptr<Communicator>> ranks_without(int gone, int ranks) {
  auto mesh = socket_mesh(ranks);
  std::vector<std::unique_ptr<Communicator>> left;
  if (!mesh) return left;
  (*mesh)[static_cast<size_t>(gone)].clear();
  for (int rank = 0; rank < ranks; ++rank)
    if (rank != gone)
      left.push_back(std::make_unique<SocketCommunicator>(rank, std::move((*mesh)[static_cast<size_t>(rank)])));
  return left;
}

TEST(RankFailure, OneThatIsGoneIsNamedByAllAtOnce) {
  auto ranks = ranks_without(2, 4);
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
  auto ranks = ranks_without(2, 3);
  int told = 0;
  const Status status = broadcast(*ranks[1], 0, std::as_writable_bytes(std::span(&told, 1)));
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().what, HasSubstr("rank 2 is gone"));
}

// One that is done before the others has not been lost, unless something is still expected of it.
TEST(RankFailure, OneThatEndsInOrderDoesNotDisturbTheRest) {
  auto ranks = joined_ranks(3);
  ranks.pop_back();
  std::thread leader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    int told = 7;
    const std::vector<Communicator::Out> out{{}, std::as_bytes(std::span(&told, 1)), {}};
    const std::vector<Communicator::In> in(3);
    EXPECT_TRUE(ranks[0]->exchange(out, in));
  });
  int told = 0;
  EXPECT_TRUE(broadcast(*ranks[1], 0, std::as_writable_bytes(std::span(&told, 1))));
  EXPECT_EQ(told, 7);
  leader.join();
  float value = 1;
  const Status status = all_reduce(*ranks[1], std::span(&value, 1));
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().what, HasSubstr("rank 2"));
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
