// What of two answers can be compared, and which differences a near tie explains.
#include "engine/answers.h"

#include <gtest/gtest.h>

namespace plumb {
namespace {

// A plan of one place whose two row buckets add in different orders, so that paths may differ.
Plan two_orders(const Kernel& few, const Kernel& many) {
  Plan plan;
  Site site;
  site.choices.push_back({.rows = {1, 1}, .kernel = &few});
  site.choices.push_back({.rows = {2, 64}, .kernel = &many});
  plan.sites.push_back(site);
  return plan;
}

Kernel kernel(const char* order) {
  return {.contract = {.name = order,
                       .deterministic = true,
                       .batch_invariant = true,
                       .sum_order = order,
                       .error_bound = {.c = 1, .unit = DType::BF16}}};
}

TEST(Answers, AreComparedUpToTheirFirstDifferentToken) {
  EXPECT_EQ(last_common(6, {1, 2, 3}, {1, 2, 3}), 8);  // the logits after the last token are not there
  EXPECT_EQ(last_common(6, {1, 9, 3}, {1, 2, 3}), 6);  // drawn from the logits of position 6, which are still alike
  EXPECT_EQ(last_common(6, {9}, {1, 2}), 5);
  EXPECT_EQ(last_common(6, {1}, {1, 2}), 6);
}

TEST(Answers, ANearTieIsWithinTheBoundOfThePaths) {
  const Kernel few = kernel("few"), many = kernel("many");
  const Plan plan = two_orders(few, many);  // 8 * 2^-8 of the largest logit, 0.3 of 10
  ProbeLogits logits;
  logits[6] = {10.0f, 9.9f, 5.0f};
  EXPECT_TRUE(near_tie(plan, logits, 6, {0, 1}, {0, 0}));
  EXPECT_FALSE(near_tie(plan, logits, 6, {0, 2}, {0, 0}));
  EXPECT_FALSE(near_tie(plan, logits, 6, {0, 0}, {0, 0}));                  // nothing differs
  EXPECT_FALSE(near_tie(plan, logits, 6, {2, 0}, {0, 0}));                  // no logits were seen there
  EXPECT_FALSE(near_tie(two_orders(few, few), logits, 6, {0, 1}, {0, 0}));  // one order: the same bits on all paths
}

}  // namespace
}  // namespace plumb
