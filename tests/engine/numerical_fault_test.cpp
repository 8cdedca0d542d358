// A token whose embedding is NaN poisons the rows that read it: that request ends with an error, nobody else notices.
#include <gtest/gtest.h>

#include <cmath>

#include "rig.h"

namespace plumb {
namespace {

using testing::Client;
using testing::make_rig;
using testing::Rig;
using testing::RigOptions;

constexpr int32_t kPoison = 200;

class NumericalFault : public testing::OnBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, NumericalFault, testing::all_backends(), testing::backend_name);

GenerateRequest clean_request(int i, int max_tokens = 8) {
  GenerateRequest r{.request_id = "clean" + std::to_string(i), .max_tokens = max_tokens};
  for (int t = 0; t < 70; ++t) r.prompt_ids.push_back(10 + t);
  for (int t = 0; t <= i; ++t) r.prompt_ids.push_back(90 + t);
  r.sampling.temperature = 0;
  r.sampling.logit_bias = {{kPoison, -100.0f}};
  return r;
}

// The common prefix of all, then the poison.
GenerateRequest poisoned_request(int id) {
  GenerateRequest r = clean_request(0);
  r.request_id = "poisoned" + std::to_string(id);
  r.prompt_ids.resize(70);
  r.prompt_ids.push_back(kPoison);
  for (int t = 0; t < 100; ++t) r.prompt_ids.push_back(10 + t);
  return r;
}

RigOptions options_with_poison() {
  RigOptions options;
  options.poisoned_ids = {kPoison};
  return options;
}

std::vector<std::vector<int32_t>> alone(int count) {
  std::vector<std::vector<int32_t>> out;
  const auto rig = make_rig();
  for (int i = 0; i < count; ++i) {
    const auto result = generate(*rig->engine, clean_request(i));
    EXPECT_TRUE(result);
    out.push_back(result->ids);
  }
  return out;
}

// In no page at all: those in quarantine have been wiped.
void expect_finite_cache(Rig& rig) {
  const int64_t pages = rig.instance->cache->pages();
  const auto expect_finite = [&](std::byte* begin, int64_t page_bytes) {
    std::vector<std::byte> storage;
    const Tensor values = rig.executor().to_host(
        Tensor(begin, DType::F32, {1, pages * page_bytes / 4}, rig.instance->device.memory.where), storage);
    for (int64_t i = 0; i < values.elements(); ++i) ASSERT_TRUE(std::isfinite(values.f32()[i]));
  };
  for (int layer = 0; layer < rig.config().num_hidden_layers; ++layer) {
    SCOPED_TRACE(layer);
    const KvView view = rig.instance->cache->view(layer);
    expect_finite(view.latent, view.geometry.latent_page_bytes());
    if (view.index_keys != nullptr) expect_finite(view.index_keys, view.geometry.index_page_bytes());
  }
}

TEST_P(NumericalFault, OnePoisonedRequestEndsWithAnErrorAndTheOthersAreUnharmed) {
  const auto want = alone(6);
  const auto rig = make_rig(options_with_poison());
  ASSERT_NE(rig, nullptr);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 3; ++i) clients.push_back(std::make_unique<Client>(*rig->engine, clean_request(i)));
    Client poisoned(*rig->engine, poisoned_request(round));
    for (int i = 3; i < 6; ++i) clients.push_back(std::make_unique<Client>(*rig->engine, clean_request(i)));
    poisoned.wait();
    ASSERT_EQ(poisoned.events.size(), 1u) << "no token was drawn from it";
    const TokenEvent& last = poisoned.events.back();
    EXPECT_EQ(last.finish, FinishReason::Error);
    ASSERT_NE(last.incident, nullptr);
    EXPECT_EQ(last.incident->site, "embed_tokens");
    EXPECT_EQ(last.incident->position, 70);
    ASSERT_TRUE(last.error.has_value());
    EXPECT_NE(last.error->why.find("position 70"), std::string::npos) << last.error->why;
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i]->wait();
      EXPECT_EQ(clients[i]->finish(), FinishReason::Length);
      EXPECT_EQ(clients[i]->ids(), want[i]) << "round " << round << ", request " << i;
    }
  }
  rig->engine->drain(10'000);
  const EngineStats stats = rig->engine->stats();
  EXPECT_EQ(stats.numerical_faults, 3u);
  EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
  expect_finite_cache(*rig);
}

// Pages that held NaN are handed to others at once.
TEST_P(NumericalFault, PagesOfAPoisonedRequestAreCleanWhenUsedAgain) {
  const auto want = alone(2);
  RigOptions options = options_with_poison();
  options.pages = 3;
  options.engine.max_context = 192;
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(generate(*rig->engine, poisoned_request(round)));
    for (size_t i = 0; i < want.size(); ++i) {
      const auto clean = generate(*rig->engine, clean_request(static_cast<int>(i)));
      ASSERT_TRUE(clean);
      EXPECT_EQ(clean->ids, want[i]);
    }
  }
  rig->engine->drain(10'000);
  expect_finite_cache(*rig);
}

TEST_P(NumericalFault, WhatAPoisonedRequestReadIsNotSharedAnyMore) {
  const auto rig = make_rig(options_with_poison());
  ASSERT_NE(rig, nullptr);
  const auto first = generate(*rig->engine, clean_request(0));
  ASSERT_TRUE(first);
  const auto hit = generate(*rig->engine, clean_request(0));
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->usage.cached_tokens, 64);
  EXPECT_FALSE(generate(*rig->engine, poisoned_request(0)));
  const auto after = generate(*rig->engine, clean_request(0));
  ASSERT_TRUE(after);
  EXPECT_EQ(after->usage.cached_tokens, 0);
  EXPECT_EQ(after->ids, first->ids);
}

TEST_P(NumericalFault, PagesThatOutliveTheFaultComeBackWithTheirLastHolder) {
  RigOptions options = options_with_poison();
  options.pages = 5;
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  Client holder(*rig->engine, clean_request(0, 220));
  holder.wait(1);
  EXPECT_FALSE(generate(*rig->engine, poisoned_request(0)));  // has read the first page of the holder
  holder.stream->cancel();
  holder.wait();
  EXPECT_EQ(holder.finish(), FinishReason::Abort);
  GenerateRequest all_pages = clean_request(1, 4);
  all_pages.prompt_ids.resize(316, 33);
  EXPECT_TRUE(generate(*rig->engine, all_pages));
}

TEST_P(NumericalFault, ATokenDrawnBeforeTheFaultIsStillDelivered) {
  const auto rig = make_rig(options_with_poison());
  ASSERT_NE(rig, nullptr);
  GenerateRequest r = clean_request(0);
  r.sampling.logit_bias = {{kPoison, 100.0f}};  // draws the poison: the next step reads its embedding
  Client client(*rig->engine, r);
  client.wait();
  EXPECT_EQ(client.ids(), std::vector<int32_t>{kPoison});
  EXPECT_EQ(client.finish(), FinishReason::Error);
  EXPECT_EQ(client.stream->usage.completion_tokens, 1);
}

}  // namespace
}  // namespace plumb
