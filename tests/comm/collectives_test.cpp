// Collectives among 1, 2, 3, 4 and 8 ranks that are threads of one process.
#include "comm/collectives.h"

#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <random>

#include "support/ranks.h"
#include "tensor/encode.h"

namespace plumb::testing {
namespace {

// Values of very different sizes, so that another order of additions gives other bits.
std::vector<float> values_of(int rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) * 7919u + 1u);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-20, 20);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(normal(random), exponent(random));
  return values;
}

class Collectives : public ::testing::TestWithParam<int> {};

TEST_P(Collectives, SumsAreTakenInOrderOfRank) {
  const int size = GetParam();
  auto ranks = joined_ranks(size);
  for (const size_t count : {size_t{1}, size_t{3}, size_t{1000}, size_t{5000}, size_t{70'001}}) {
    std::vector<float> want = values_of(0, count);
    for (int r = 1; r < size; ++r) {
      const std::vector<float> more = values_of(r, count);
      for (size_t i = 0; i < count; ++i) want[i] += more[i];
    }
    on_each_rank(ranks, [&](Communicator& comm) {
      std::vector<float> values = values_of(comm.rank(), count);
      ASSERT_TRUE(all_reduce(comm, values));
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(want[i])) << comm.rank() << ": " << i;
    });
  }
}

TEST_P(Collectives, Bf16IsSummedInFloatAndRoundedOnce) {
  const int size = GetParam();
  auto ranks = joined_ranks(size);
  for (const size_t count : {size_t{7}, size_t{40'000}}) {
    std::vector<float> sum(count, 0.0f);
    for (int r = 0; r < size; ++r) {
      const std::vector<float> more = values_of(r, count);
      for (size_t i = 0; i < count; ++i) sum[i] = r == 0 ? round_bf16(more[i]) : sum[i] + round_bf16(more[i]);
    }
    on_each_rank(ranks, [&](Communicator& comm) {
      std::vector<uint16_t> codes;
      for (const float value : values_of(comm.rank(), count)) codes.push_back(f32_to_bf16(value));
      ASSERT_TRUE(all_reduce_bf16(comm, codes));
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(codes[i], f32_to_bf16(sum[i])) << comm.rank() << ": " << i;
    });
  }
}

TEST_P(Collectives, GathersAndBroadcastsComeWhole) {
  const int size = GetParam();
  auto ranks = joined_ranks(size);
  on_each_rank(ranks, [&](Communicator& comm) {
    const auto me = static_cast<uint32_t>(comm.rank());
    std::vector<uint32_t> mine(50'000);
    std::iota(mine.begin(), mine.end(), me * 1'000'000u);
    std::vector<uint32_t> all(mine.size() * static_cast<size_t>(size), 7);
    ASSERT_TRUE(all_gather(comm, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all))));
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(all[i], (i / mine.size()) * 1'000'000 + i % mine.size()) << comm.rank();
    const int root = size - 1;
    std::vector<uint32_t> at_root(all.size(), 7);
    ASSERT_TRUE(gather(comm, root, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(at_root))));
    EXPECT_EQ(at_root == all, comm.rank() == root);
    std::vector<uint32_t> told = mine;
    ASSERT_TRUE(broadcast(comm, root, std::as_writable_bytes(std::span(told))));
    EXPECT_EQ(told.front(), static_cast<uint32_t>(root) * 1'000'000);
    ASSERT_TRUE(barrier(comm));
    const auto texts = all_gather_text(comm, std::string(me * 100, 'x') + std::to_string(me));
    ASSERT_TRUE(texts);
    for (size_t r = 0; r < texts->size(); ++r) EXPECT_EQ((*texts)[r], std::string(r * 100, 'x') + std::to_string(r));
    ASSERT_TRUE(introduce(comm));
    EXPECT_NE(comm.name_of(0).find("rank 0 ("), std::string::npos);
  });
}

// Ranks run ahead of each other as far as the data allows; what belongs to later exchanges stays where it is.
TEST_P(Collectives, ManySmallOnesStayInOrder) {
  auto ranks = joined_ranks(GetParam());
  on_each_rank(ranks, [&](Communicator& comm) {
    for (int turn = 0; turn < 300; ++turn) {
      std::array<float, 5> values{};
      values.fill(static_cast<float>(turn + comm.rank()));
      ASSERT_TRUE(all_reduce(comm, values));
      const int size = comm.size();
      ASSERT_EQ(values[4], static_cast<float>(turn * size + size * (size - 1) / 2));
      int told = comm.rank() == turn % size ? turn : -1;
      ASSERT_TRUE(broadcast(comm, turn % size, std::as_writable_bytes(std::span(&told, 1))));
      ASSERT_EQ(told, turn);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 4, 8));

}  // namespace
}  // namespace plumb::testing
