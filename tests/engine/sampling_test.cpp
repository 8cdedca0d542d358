// What a request's sampling fields do, end to end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "rig.h"

namespace plumb {
namespace {

using testing::Client;
using testing::make_rig;
using testing::Rig;

GenerateRequest request_of(const std::string& id, int max_tokens = 12) {
  GenerateRequest r{.request_id = id, .max_tokens = max_tokens};
  for (int i = 0; i < 30; ++i) r.prompt_ids.push_back(20 + (i * 37) % 200);
  r.sampling.temperature = 0;
  return r;
}

double log_softmax(const std::vector<float>& logits, int32_t id) {
  const double largest = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - largest);
  return static_cast<double>(logits[static_cast<size_t>(id)]) - largest - std::log(sum);
}

void expect_best(const std::vector<TokenLogprob>& top, const std::vector<float>& logits, size_t count) {
  ASSERT_EQ(top.size(), count);
  std::vector<float> sorted = logits;
  std::ranges::sort(sorted, std::greater<>());
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(logits[static_cast<size_t>(top[i].id)], sorted[i]);
    EXPECT_NEAR(static_cast<double>(top[i].logprob), log_softmax(logits, top[i].id), 1e-5);
  }
}

// Of the model's own distribution, whatever the penalties, bias and temperature say.
TEST(SamplingFields, LogprobsAreThoseOfTheUntouchedLogits) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  GenerateRequest r = request_of("r");
  r.sampling = {.temperature = 0.7f,
                .frequency_penalty = 1.5f,
                .repetition_penalty = 1.4f,
                .logit_bias = {{7, 4.0f}},
                .seed = 3,
                .logprobs = 4};
  r.prompt_logprobs = 2;
  Client client(*rig->engine, r);
  client.wait();
  const auto logits = rig->logits.of("r");
  ASSERT_EQ(client.ids().size(), 12u);
  for (size_t i = 0; i < 12; ++i) {
    const TokenEvent& event = client.events[i];
    const std::vector<float>& row = logits.at(29 + static_cast<int>(i));
    EXPECT_EQ(event.logprob.id, event.id);
    EXPECT_NEAR(static_cast<double>(event.logprob.logprob), log_softmax(row, event.id), 1e-5);
    expect_best(event.top, row, 4);
  }
  const auto& scored = client.stream->prompt_logprobs;
  ASSERT_EQ(scored.size(), 29u);
  for (size_t i = 0; i < scored.size(); ++i) {
    const std::vector<float>& row = logits.at(static_cast<int>(i));
    EXPECT_EQ(scored[i].token.id, r.prompt_ids[i + 1]);
    EXPECT_NEAR(static_cast<double>(scored[i].token.logprob), log_softmax(row, r.prompt_ids[i + 1]), 1e-5);
    expect_best(scored[i].top, row, 2);
  }
}

TEST(SamplingFields, GreedyIsTheArgMax) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  const auto result = generate(*rig->engine, request_of("r"));
  ASSERT_TRUE(result);
  const auto logits = rig->logits.of("r");
  for (size_t i = 0; i < result->ids.size(); ++i) {
    const std::vector<float>& row = logits.at(29 + static_cast<int>(i));
    EXPECT_EQ(result->ids[i], std::ranges::max_element(row) - row.begin());
  }
}

TEST(SamplingFields, AStopIdEndsTheTextAndIsNotPartOfIt) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  GenerateRequest r = request_of("r");
  r.stop_ids = {3, 77};
  r.sampling.logit_bias = {{77, 100.0f}};
  r.min_tokens = 5;
  r.sampling.logprobs = 1;
  Client client(*rig->engine, r);
  client.wait();
  ASSERT_EQ(client.ids().size(), 5u) << "masked until then";
  for (const int32_t id : client.ids()) EXPECT_TRUE(id != 3 && id != 77);
  EXPECT_EQ(client.finish(), FinishReason::Stop);
  EXPECT_EQ(client.events.back().id, -1);
  EXPECT_EQ(client.events.back().stop_id, 77);
  EXPECT_EQ(client.events.back().logprob.id, 77) << "who scores texts needs it";
  EXPECT_LT(client.events.back().logprob.logprob, 0.0f);
  EXPECT_EQ(client.events.back().top.size(), 1u);
  EXPECT_EQ(client.stream->usage.completion_tokens, 6);
}

TEST(SamplingFields, ASeedRepeatsItsTextAndAnotherGivesAnother) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  std::set<std::vector<int32_t>> texts;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    GenerateRequest r = request_of("r" + std::to_string(seed));
    r.sampling = {.temperature = 1.0f, .seed = seed};
    const auto first = generate(*rig->engine, r);
    const auto again = generate(*rig->engine, r);
    ASSERT_TRUE(first && again);
    EXPECT_EQ(first->ids, again->ids);
    texts.insert(first->ids);
  }
  EXPECT_EQ(texts.size(), 4u);
}

TEST(SamplingFields, AFrequencyPenaltySpreadsTheTokens) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  GenerateRequest r = request_of("r", 60);
  r.sampling.logit_bias = {{50, 100.0f}, {51, 80.0f}, {52, 60.0f}};
  const auto plain = generate(*rig->engine, r);
  ASSERT_TRUE(plain);
  EXPECT_EQ(std::ranges::count(plain->ids, 50), 60);
  r.sampling.frequency_penalty = 2.0f;
  const auto spread = generate(*rig->engine, r);
  ASSERT_TRUE(spread);
  for (const int32_t id : {50, 51, 52}) EXPECT_GT(std::ranges::count(spread->ids, id), 3);
}

TEST(SamplingFields, IdsBehindTheVocabularyAreNeverDrawn) {
  testing::RigOptions options;
  options.engine.vocab_size = 100;
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  GenerateRequest r = request_of("r", 60);
  r.sampling = {.temperature = 2.0f, .logit_bias = {{180, 100.0f}}, .seed = 1};
  const auto result = generate(*rig->engine, r);
  ASSERT_TRUE(result);
  for (const int32_t id : result->ids) EXPECT_LT(id, 100);
}

}  // namespace
}  // namespace plumb
