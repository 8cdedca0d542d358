// Launchers' variables, and ranks that meet over TCP.
#include "comm/rank_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <map>

#include "comm/collectives.h"
#include "comm/rendezvous.h"
#include "support/ranks.h"

namespace plumb::testing {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<RankEnv> env_of(const Variables& variables) {
  return read_rank_env([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(RankEnv, EachLaunchersVariablesAreRead) {
  const auto none = env_of({{"WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  ASSERT_TRUE(none);
  EXPECT_EQ(none->launcher, Launcher::None);
  const auto torch = env_of({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(torch);
  EXPECT_EQ(torch->launcher, Launcher::Torchrun);
  EXPECT_EQ(torch->rank, 3);
  EXPECT_EQ(torch->size, 4);
  EXPECT_EQ(torch->address, "head");
  EXPECT_EQ(torch->port, 1234);
  const auto mpi = env_of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  ASSERT_TRUE(mpi);
  EXPECT_EQ(mpi->launcher, Launcher::OpenMpi);
  const auto slurm =
      env_of({{"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_STEP_NODELIST", "gpu[03-07,12]"}});
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->launcher, Launcher::Slurm);
  EXPECT_EQ(slurm->address, "gpu03");
  const auto set =
      env_of({{"LWS_GROUP_SIZE", "2"}, {"LWS_WORKER_INDEX", "1"}, {"LWS_LEADER_ADDRESS", "plumb-0.plumb"}});
  ASSERT_TRUE(set);
  EXPECT_EQ(set->launcher, Launcher::Kubernetes);
  EXPECT_EQ(set->address, "plumb-0.plumb");
  const auto job = env_of({{"WORLD_SIZE", "4"}, {"JOB_COMPLETION_INDEX", "2"}, {"MASTER_ADDR", "job-0"}});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->rank, 2);
}

TEST(RankEnv, NamesOfSlurmListsAreTakenApart) {
  EXPECT_EQ(first_host("a"), "a");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("n[1,3]"), "n1");
  EXPECT_EQ(first_host("n[007-009]"), "n007");
}

TEST(RankEnv, MpirunInsideSlurmCountsItsOwnRanks) {
  const auto env = env_of({{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"SLURM_PROCID", "1"},
                           {"SLURM_STEP_NUM_TASKS", "2"},
                           {"SLURM_STEP_NODELIST", "a,b"}});
  ASSERT_TRUE(env);
  EXPECT_EQ(env->rank, 3);
}

TEST(RankEnv, ContradictionsAndGapsAreRefused) {
  const auto two = env_of({{"OMPI_COMM_WORLD_RANK", "0"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"RANK", "1"},
                           {"WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "head"}});
  ASSERT_FALSE(two);
  EXPECT_THAT(two.error().what, HasSubstr("rank 0 of 2 by OMPI_COMM_WORLD_RANK"));
  EXPECT_THAT(two.error().what, HasSubstr("rank 1 of 2 by RANK"));
  const auto no_rank = env_of({{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "head"}});
  ASSERT_FALSE(no_rank);
  EXPECT_THAT(no_rank.error().what, HasSubstr("RANK is not set"));
  const auto no_address = env_of({{"WORLD_SIZE", "2"}, {"RANK", "0"}});
  ASSERT_FALSE(no_address);
  EXPECT_THAT(no_address.error().what, HasSubstr("MASTER_ADDR"));
  for (const char* bad : {"2", "-1", "x", "1x"}) {
    const auto outside = env_of({{"WORLD_SIZE", "2"}, {"RANK", bad}, {"MASTER_ADDR", "head"}});
    ASSERT_FALSE(outside) << bad;
    EXPECT_THAT(outside.error().what, HasSubstr(std::string("RANK=") + bad));
  }
}

int free_port() {
  const Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), length);
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

TEST(Rendezvous, RanksMeetInAnyOrder) {
  constexpr int kRanks = 4;
  const int port = free_port();
  std::vector<std::thread> threads;
  for (int rank = kRanks - 1; rank >= 0; --rank) {
    threads.emplace_back([rank, port] {
      std::this_thread::sleep_for(std::chrono::milliseconds((kRanks - rank) * 20));
      auto comm = meet({.rank = rank, .size = kRanks, .address = "127.0.0.1", .port = port}, std::chrono::seconds(60));
      ASSERT_TRUE(comm) << comm.error().to_string();
      (*comm)->set_deadline(std::chrono::seconds(60));
      float value = static_cast<float>(rank + 1);
      ASSERT_TRUE(all_reduce(**comm, std::span(&value, 1)));
      EXPECT_EQ(value, 10.0f);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Rendezvous, ThoseWhoDoNotComeAreNamed) {
  const int port = free_port();
  std::thread second([port] {
    const auto comm =
        meet({.rank = 1, .size = 4, .address = "127.0.0.1", .port = port}, std::chrono::milliseconds(3000));
    EXPECT_FALSE(comm);
  });
  const auto comm = meet({.rank = 0, .size = 4, .address = "127.0.0.1", .port = port}, std::chrono::milliseconds(1000));
  ASSERT_FALSE(comm);
  EXPECT_THAT(comm.error().what, HasSubstr("2, 3 of 4"));
  second.join();
  const auto alone =
      meet({.rank = 1, .size = 2, .address = "127.0.0.1", .port = free_port()}, std::chrono::milliseconds(300));
  ASSERT_FALSE(alone);
  EXPECT_THAT(alone.error().what, HasSubstr("rank 0 at 127.0.0.1:"));
}

}  // namespace
}  // namespace plumb::testing
