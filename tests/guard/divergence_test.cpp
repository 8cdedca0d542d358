#include "guard/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace plumb {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(CompareLogits, GivesTheDivergenceOfTheProbabilities) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2), both with a shift that softmax does not see.
  const std::vector<float> a{100 + std::log(2.0f), 100, 100}, b{-7, -7, -7 + std::log(2.0f)};
  const RowDivergence row = compare_logits(a, b);
  EXPECT_NEAR(row.kl, 0.25 * std::log(2.0), 1e-6);
  EXPECT_EQ(row.best_a, 0);
  EXPECT_EQ(row.best_b, 2);
  EXPECT_EQ(compare_logits(a, a).kl, 0);
}

TEST(CompareLogits, IsInfiniteWhereALogitIsNotFinite) {
  const std::vector<float> good{1, 2, 3};
  for (const float bad : {std::nanf(""), kInf, -kInf}) {
    const std::vector<float> other{1, bad, 3};
    EXPECT_EQ(compare_logits(good, other).kl, std::numeric_limits<double>::infinity());
    EXPECT_EQ(compare_logits(other, good).best_a, -1);
  }
}

TEST(Divergence, SumsUpPositions) {
  Divergence all;
  for (int i = 1; i <= 200; ++i) all.add({.kl = i == 7 ? 1000.0 : i, .best_a = 1, .best_b = i % 4 == 0 ? 2 : 1});
  EXPECT_DOUBLE_EQ(all.mean(), (200 * 201 / 2 - 7 + 1000) / 200.0);
  EXPECT_EQ(all.max(), 1000);
  EXPECT_EQ(all.quantile(0.99), 199);
  EXPECT_EQ(all.top1_agreement(), 0.75);
  EXPECT_EQ(all.worst(3), (std::vector<size_t>{6, 199, 198}));
}

TEST(Divergence, OfNothingIsNothing) {
  const Divergence none;
  EXPECT_EQ(none.mean(), 0);
  EXPECT_EQ(none.max(), 0);
  EXPECT_TRUE(none.worst(5).empty());
}

}  // namespace
}  // namespace plumb
