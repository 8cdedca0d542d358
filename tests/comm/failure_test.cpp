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

// What a device's kernels have between the ranks: waits until it is told that it is in vain, or that time is over.
struct WaitingLink final : DeviceLink {
  std::atomic<bool> given_up{false};
  std::atomic<int64_t> deadline_ms{-1};
  std::optional<Error> failure() const override {
    if (!given_up) return std::nullopt;
    return Error{Code::Peer, "no answer on the device", "", {}};
  }
  void set_deadline(std::chrono::milliseconds deadline) override { deadline_ms = deadline.count(); }
  void look_after(bool lost) override {
    if (lost) given_up = true;
  }
  void wait() const {
    while (!given_up) std::this_thread::yield();
  }
};

TEST(RankFailure, AWaitOnADeviceEndsWithTheRankItIsFor) {
  auto ranks = joined_ranks(3);
  Communicator& comm = *ranks[0];
  comm.attach(std::make_unique<WaitingLink>());
  auto* const link = comm.attached<WaitingLink>();
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->deadline_ms, 60'000);
  comm.set_deadline(std::chrono::milliseconds(5));
  EXPECT_EQ(link->deadline_ms, 5);
  comm.look();
  EXPECT_FALSE(comm.failed());
  ranks[2].reset();
  link->wait();
  comm.look();
  ASSERT_TRUE(comm.failure());
  EXPECT_THAT(comm.failure()->what, HasSubstr("rank 2"));
  comm.detach_links();
  EXPECT_EQ(comm.attached<WaitingLink>(), nullptr);
}

TEST(RankFailure, ADevicesFailureIsTheCommunicatorsAndTold) {
  auto ranks = joined_ranks(2);
  auto link = std::make_unique<WaitingLink>();
  link->given_up = true;
  ranks[0]->attach(std::move(link));
  float value = 1;
  EXPECT_THAT(all_reduce(*ranks[0], std::span(&value, 1)).error().what, HasSubstr("no answer on the device"));
  EXPECT_FALSE(ranks[1]->others_here());
  EXPECT_THAT(all_reduce(*ranks[1], std::span(&value, 1)).error().what, HasSubstr("no answer on the device"));
  ranks[0]->detach_links();
}

TEST(RankFailure, AFailureThatEveryRankHearsOf) {
  auto ranks = joined_ranks(3);
  on_each_rank(ranks, [](Communicator& comm) {
    EXPECT_TRUE(share_failure(comm, Ok{}));
    const Status mine = comm.rank() == 1 ? Status(Error{Code::Environment, "no memory", "", {}}) : Status(Ok{});
    const Status shared = share_failure(comm, mine);
    ASSERT_FALSE(shared);
    EXPECT_THAT(shared.error().what, HasSubstr("no memory"));
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

// The leader speaks for all, so it ends with the code of the cause; the others with that of a lost rank.
TEST(RankFailure, OfACheckThatFailedTheLeaderHearsThatItDid) {
  auto ranks = joined_ranks(3);
  ranks[1]->fail({Code::Verification, "rank 1 has other bits", "", {}});
  for (const int rank : {0, 2}) {
    float value = 1;
    const Status status = all_reduce(*ranks[static_cast<size_t>(rank)], std::span(&value, 1));
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, rank == 0 ? Code::Verification : Code::Peer);
    EXPECT_EQ(status.error().what, "rank 1 has other bits");
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
