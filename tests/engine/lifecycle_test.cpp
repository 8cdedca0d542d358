// Every request gets exactly one terminal answer, whatever happens to it and whenever.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "rig.h"

namespace plumb {
namespace {

using testing::Client;
using testing::make_rig;
using testing::Rig;
using testing::RigOptions;

GenerateRequest request_of(const std::string& id, int prompt, int max_tokens, int32_t first = 10) {
  GenerateRequest r{.request_id = id, .max_tokens = max_tokens};
  for (int i = 0; i < prompt; ++i) r.prompt_ids.push_back(first + i % 200);
  r.sampling.temperature = 0;
  return r;
}

int terminal_events(const Client& client) {
  int count = 0;
  for (const TokenEvent& event : client.events) count += event.finish != FinishReason::None ? 1 : 0;
  return count;
}

void expect_all_pages_back(Rig& rig) {
  rig.engine->drain(10'000);
  const EngineStats stats = rig.engine->stats();
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
}

// Cancels a request at the step for which `when` says so.
RigOptions cancelling(std::function<bool(const BatchItem&)> when) {
  RigOptions options;
  options.engine.chunk_tokens = 16;
  options.engine.observer = [when = std::move(when)](const StepView& step) {
    for (const BatchItem& item : step.items) {
      if (item.sequence->request.request_id == "victim" && when(item)) item.sequence->stream->cancel();
    }
  };
  return options;
}

TEST(Lifecycle, ACancelInTheSecondPromptChunkEndsTheRequestAtTheNextStep) {
  const auto rig = make_rig(cancelling([](const BatchItem& item) { return item.begin == 16; }));
  ASSERT_NE(rig, nullptr);
  Client victim(*rig->engine, request_of("victim", 100, 50));
  Client other(*rig->engine, request_of("other", 20, 8, 40));
  victim.wait();
  other.wait();
  EXPECT_EQ(victim.finish(), FinishReason::Abort);
  EXPECT_EQ(victim.events.size(), 1u);
  EXPECT_EQ(other.finish(), FinishReason::Length);
  EXPECT_EQ(rig->engine->stats().aborts, 1u);
  expect_all_pages_back(*rig);
}

TEST(Lifecycle, ACancelInTheLastStepStillGivesOneAnswer) {
  const auto rig = make_rig(cancelling([](const BatchItem& item) { return item.sequence->generated() == 4; }));
  ASSERT_NE(rig, nullptr);
  Client victim(*rig->engine, request_of("victim", 20, 5));
  victim.wait();
  victim.stream->cancel();
  EXPECT_EQ(victim.finish(), FinishReason::Length);
  EXPECT_EQ(victim.ids().size(), 5u);
  EXPECT_EQ(terminal_events(victim), 1);
  expect_all_pages_back(*rig);
}

TEST(Lifecycle, ACancelledRequestInTheQueueIsAnsweredWhileOthersRun) {
  RigOptions options;
  options.engine.max_running = 1;
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  Client first(*rig->engine, request_of("first", 20, 200));
  Client queued(*rig->engine, request_of("queued", 20, 200));
  first.wait(1);
  queued.stream->cancel();
  queued.wait();
  EXPECT_EQ(queued.finish(), FinishReason::Abort);
  EXPECT_EQ(queued.events.size(), 1u);
  EXPECT_EQ(first.finish(), FinishReason::None) << "it goes on";
  first.stream->cancel();
  first.wait();
  expect_all_pages_back(*rig);
}

TEST(Lifecycle, CancelledBeforeItIsSubmitted) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  const auto stream = std::make_shared<TokenStream>();
  stream->cancel();
  ASSERT_TRUE(rig->engine->submit(request_of("gone", 20, 20), stream));
  rig->engine->drain(10'000);
  std::vector<TokenEvent> events;
  EXPECT_TRUE(stream->take(events));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, FinishReason::Abort);
}

TEST(Lifecycle, ADeadlineEndsARequest) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  GenerateRequest late = request_of("late", 20, 250);
  late.deadline_us = 1;
  Client client(*rig->engine, late);
  client.wait();
  EXPECT_EQ(client.finish(), FinishReason::Abort);
  ASSERT_TRUE(client.events.back().error.has_value());
  EXPECT_NE(client.events.back().error->why.find("deadline"), std::string::npos);
  GenerateRequest soon = request_of("soon", 20, 250);
  soon.deadline_us = std::chrono::duration_cast<std::chrono::microseconds>(
                         std::chrono::steady_clock::now().time_since_epoch() + std::chrono::hours(1))
                         .count();
  Client in_time(*rig->engine, soon);
  in_time.wait();
  EXPECT_EQ(in_time.finish(), FinishReason::Length);
}

TEST(Lifecycle, DrainLetsRunningRequestsEndAndRefusesNewOnes) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  Client running(*rig->engine, request_of("running", 20, 40));
  running.wait(1);
  rig->engine->drain(60'000);
  running.wait();
  EXPECT_EQ(running.finish(), FinishReason::Length);
  const Status refused = rig->engine->submit(request_of("new", 5, 5), std::make_shared<TokenStream>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::Environment);
  EXPECT_TRUE(rig->engine->alive());
}

TEST(Lifecycle, DrainAbortsWhatOutlastsIt) {
  RigOptions options;
  options.engine.max_running = 1;
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  Client running(*rig->engine, request_of("running", 20, 280));
  Client queued(*rig->engine, request_of("queued", 20, 280));
  running.wait(1);
  rig->engine->drain(0);
  running.wait();
  queued.wait();
  EXPECT_EQ(running.finish(), FinishReason::Abort);
  EXPECT_EQ(queued.finish(), FinishReason::Abort);
}

TEST(Lifecycle, DestroyingTheEngineAnswersEverybody) {
  auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<Client>(*rig->engine, request_of("r" + std::to_string(i), 20, 200)));
  }
  rig->engine.reset();
  for (const auto& client : clients) {
    client->wait();
    EXPECT_EQ(terminal_events(*client), 1);
  }
}

TEST(Lifecycle, AFullQueueSaysNoAtOnce) {
  RigOptions options;
  options.engine.max_running = 1;
  options.engine.queue_limit = 2;
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(*rig->engine, request_of("r" + std::to_string(i), 20, 280)));
  }
  const Status refused = rig->engine->submit(request_of("fourth", 5, 5), std::make_shared<TokenStream>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::Environment);
  for (const auto& client : clients) client->stream->cancel();
  for (const auto& client : clients) client->wait();
  rig->engine->drain(10'000);
}

TEST(Lifecycle, WhatCanNeverRunIsRefused) {
  RigOptions options;
  options.pages = 3;  // 192 tokens
  options.engine.max_context = 0;
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  EXPECT_EQ(rig->engine->max_context(), 192);
  const auto refusal = [&](const GenerateRequest& request) {
    const Status status = rig->engine->submit(request, std::make_shared<TokenStream>());
    return status ? "" : status.error().to_string();
  };
  EXPECT_NE(refusal(request_of("large", 190, 3)).find("193"), std::string::npos);
  EXPECT_NE(refusal(request_of("empty", 0, 3)), "");
  EXPECT_NE(refusal(request_of("none wanted", 5, 0)), "");
  GenerateRequest strange = request_of("strange", 5, 3);
  strange.prompt_ids[2] = 256;
  EXPECT_NE(refusal(strange).find("256"), std::string::npos);
  strange.prompt_ids[2] = -1;
  EXPECT_NE(refusal(strange), "");
  GenerateRequest biased = request_of("biased", 5, 3);
  biased.sampling.logit_bias = {{99999999, 5.0f}};
  EXPECT_NE(refusal(biased).find("99999999"), std::string::npos);
  Client fits(*rig->engine, request_of("fits", 189, 3));
  fits.wait();
  EXPECT_EQ(fits.finish(), FinishReason::Length);
}

TEST(Lifecycle, OptionsThatCannotBeHonouredAreRefused) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  const Forward forward = rig->instance->forward();
  const auto refused = [&](const EngineOptions& options) {
    const auto engine = Engine::start(forward, options);
    return engine ? "" : engine.error().to_string();
  };
  const EngineOptions good = RigOptions{}.engine;
  EngineOptions options = good;
  options.draft_tokens = 2;
  EXPECT_NE(refused(options).find("MTP"), std::string::npos);
  options.draft_tokens = 4;
  EXPECT_NE(refused(options), "");
  options = good;
  options.max_batch_tokens = options.max_running;
  EXPECT_NE(refused(options).find("max_batch_tokens"), std::string::npos);
  options = good;
  options.max_context = 100'000;
  EXPECT_NE(refused(options).find("100000"), std::string::npos);
  options = good;
  options.max_batch_tokens = 5000;
  EXPECT_NE(refused(options).find("buffers"), std::string::npos);
}

TEST(Lifecycle, OneWakeUpAStepAndStream) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  Client client(*rig->engine, request_of("r", 20, 30));
  client.wait();
  rig->engine->drain(10'000);
  EXPECT_EQ(client.wakes->load(), rig->engine->stats().steps);
  EXPECT_EQ(client.stream->usage.prompt_tokens, 20);
  EXPECT_EQ(client.stream->usage.completion_tokens, 30);
}

// flashinfer-like faults show under load only: many at once, a shared prefix, several rounds, each as it is alone.
TEST(Lifecycle, SixtyFourAtOnceForFiveRoundsAreEachAsAlone) {
  RigOptions options;
  options.engine.max_running = 64;
  options.pages = 200;
  options.threads = 2;
  options.engine.observer = [](const StepView&) {};
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  std::mt19937 random(5);
  std::vector<GenerateRequest> requests;
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 64; ++i) {
    GenerateRequest r = request_of("r" + std::to_string(i), 66, 8);
    for (int own = 0; own < 1 + i % 5; ++own) r.prompt_ids.push_back(static_cast<int32_t>(random() % 250u));
    const auto solo = generate(*rig->engine, r);
    ASSERT_TRUE(solo);
    alone.push_back(solo->ids);
    requests.push_back(std::move(r));
  }
  for (int round = 0; round < 5; ++round) {
    std::vector<std::unique_ptr<Client>> clients;
    for (const GenerateRequest& r : requests) clients.push_back(std::make_unique<Client>(*rig->engine, r));
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i]->wait();
      EXPECT_EQ(clients[i]->ids(), alone[i]) << "round " << round << ", request " << i;
    }
  }
  expect_all_pages_back(*rig);
}

TEST(Generate, ACallbackCanStopIt) {
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  int seen = 0;
  const auto result = generate(*rig->engine, request_of("r", 20, 200), [&](const TokenEvent&) { return ++seen < 3; });
  ASSERT_TRUE(result);
  EXPECT_EQ(result->events.back().finish, FinishReason::Abort);
  EXPECT_LT(result->ids.size(), 200u);
  EXPECT_FALSE(generate(*rig->engine, request_of("r", 20, 2000)));
}

}  // namespace
}  // namespace plumb
