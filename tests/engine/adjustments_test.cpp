#include "engine/adjustments.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace plumb {
namespace {

struct Effect {
  float factor = 1, term = 0;
  bool operator==(const Effect&) const = default;
};

std::map<int32_t, Effect> effects(const Adjustments& a) {
  std::map<int32_t, Effect> out;
  for (size_t i = 0; i < a.ids().size(); ++i) {
    EXPECT_TRUE(out.emplace(a.ids()[i], Effect{a.factors()[i], a.terms()[i]}).second) << "listed twice";
  }
  return out;
}

TEST(Adjustments, NothingIsListedWithoutPenaltiesOrBias) {
  Adjustments a;
  a.init({}, std::vector<int32_t>{1, 2, 3}, 10, 100);
  a.on_generated(5);
  EXPECT_TRUE(a.ids().empty());
  EXPECT_FALSE(a.follows_output());
}

TEST(Adjustments, PresenceCountsOnceFrequencyEachTime) {
  Adjustments a;
  a.init({.presence_penalty = 0.5f, .frequency_penalty = 0.25f}, std::vector<int32_t>{7}, 10, 100);
  EXPECT_TRUE(effects(a).empty()) << "the prompt does not count";
  a.on_generated(7);
  a.on_generated(9);
  a.on_generated(7);
  EXPECT_EQ(effects(a), (std::map<int32_t, Effect>{{7, {1, -1.0f}}, {9, {1, -0.75f}}}));
  EXPECT_TRUE(a.follows_output());
}

TEST(Adjustments, RepetitionCoversPromptAndOutput) {
  Adjustments a;
  a.init({.repetition_penalty = 1.5f, .logit_bias = {{3, 2.0f}}}, std::vector<int32_t>{7, 7}, 10, 100);
  a.on_generated(8);
  EXPECT_EQ(effects(a), (std::map<int32_t, Effect>{{3, {1, 2}}, {7, {1.5f, 0}}, {8, {1.5f, 0}}}));
}

TEST(Adjustments, BiasAloneDoesNotFollowTheOutput) {
  Adjustments a;
  a.init({.logit_bias = {{3, 2.0f}, {4, -100.0f}}}, {}, 10, 100);
  a.on_generated(3);
  EXPECT_EQ(effects(a), (std::map<int32_t, Effect>{{3, {1, 2}}, {4, {1, -100}}}));
  EXPECT_FALSE(a.follows_output());
}

TEST(Adjustments, AgreesWithCountingAndNeverMoves) {
  std::mt19937 random(3);
  for (const int vocab : {5, 300}) {
    Adjustments a;
    const SamplingParams sampling{
        .presence_penalty = 0.7f, .frequency_penalty = 0.1f, .repetition_penalty = 1.2f, .logit_bias = {{1, -0.5f}}};
    std::vector<int32_t> prompt;
    for (int i = 0; i < 50; ++i) prompt.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
    a.init(sampling, prompt, 200, vocab);
    const int32_t* before = a.ids().data();
    std::map<int32_t, int> counts;
    for (int i = 0; i < 200; ++i) {
      const int32_t id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
      a.on_generated(id);
      ++counts[id];
    }
    EXPECT_EQ(a.ids().data(), before) << "the lists were sized at the start";
    std::map<int32_t, Effect> want{{1, {1, -0.5f}}};
    for (const int32_t id : prompt) want[id].factor = 1.2f;
    for (const auto& [id, count] : counts) {
      want[id].factor = 1.2f;
      want[id].term = (id == 1 ? -0.5f : 0.0f) - 0.7f - 0.1f * static_cast<float>(count);
    }
    EXPECT_EQ(effects(a), want);
  }
}

}  // namespace
}  // namespace plumb
