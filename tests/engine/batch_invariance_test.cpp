// Whatever else is in the batch, however a prompt is cut, found or computed again: the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "rig.h"

namespace plumb {
namespace {

using testing::Client;
using testing::LogitsRecorder;
using testing::make_rig;
using testing::Rig;
using testing::RigOptions;

constexpr int kRequests = 16;

class BatchInvariance : public testing::OnBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, BatchInvariance, testing::all_backends(), testing::backend_name);

std::vector<int32_t> random_prompt(std::mt19937& random, int length) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(random() % 250u) + 2);
  return prompt;
}

// Greedy, sampled, penalised, biased; some share their first 70 tokens.
std::vector<GenerateRequest> mixture() {
  std::mt19937 random(11);
  const std::vector<int32_t> common = random_prompt(random, 70);
  std::vector<GenerateRequest> out;
  for (int i = 0; i < kRequests; ++i) {
    GenerateRequest r{.request_id = "r" + std::to_string(i)};
    r.prompt_ids = i % 4 == 1 ? common : std::vector<int32_t>{};
    const std::vector<int32_t> own = random_prompt(random, 1 + static_cast<int>(random() % 70u));
    r.prompt_ids.insert(r.prompt_ids.end(), own.begin(), own.end());
    r.max_tokens = 4 + (i % 9) * 4;
    r.min_tokens = i % 5;
    r.stop_ids = {1, 5};
    r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    r.sampling.seed = static_cast<uint64_t>(i) * 77;
    r.sampling.logprobs = i % 3 == 0 ? 5 : -1;
    if (i % 4 == 2) r.sampling.repetition_penalty = 1.3f;
    if (i % 4 == 3) r.sampling.frequency_penalty = 0.4f, r.sampling.logit_bias = {{9, 1.5f}};
    if (i % 7 == 0) r.prompt_logprobs = 2;
    out.push_back(std::move(r));
  }
  return out;
}

struct Outcome {
  std::vector<int32_t> ids{};
  FinishReason finish = FinishReason::None;
  std::vector<std::pair<int32_t, float>> logprobs{}, prompt_logprobs{};
  LogitsRecorder::Rows logits{};
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(Rig& rig, Client& client, const std::string& id) {
  client.wait();
  Outcome out{.ids = client.ids(), .finish = client.finish(), .logits = rig.logits.of(id)};
  for (const TokenEvent& event : client.events) {
    out.logprobs.emplace_back(event.logprob.id, event.logprob.logprob);
    for (const TokenLogprob& best : event.top) out.logprobs.emplace_back(best.id, best.logprob);
  }
  for (const PromptLogprob& p : client.stream->prompt_logprobs) {
    out.prompt_logprobs.emplace_back(p.token.id, p.token.logprob);
    for (const TokenLogprob& best : p.top) out.prompt_logprobs.emplace_back(best.id, best.logprob);
  }
  return out;
}

// One after the other, uncached, each prompt in one piece.
std::vector<Outcome> run_alone(RigOptions options) {
  options.engine.prefix_cache = false;
  options.engine.chunk_tokens = 1000;
  const auto rig = make_rig(options);
  if (rig == nullptr) return {};
  std::vector<Outcome> out;
  for (const GenerateRequest& request : mixture()) {
    Client client(*rig->engine, request);
    out.push_back(outcome_of(*rig, client, request.request_id));
  }
  return out;
}

const std::vector<Outcome>& alone() {
  static std::map<std::string, std::vector<Outcome>> outcomes;
  std::vector<Outcome>& mine = outcomes[testing::OnBackend::current()];
  if (mine.empty()) mine = run_alone(RigOptions());
  return mine;
}

void expect_same(const Outcome& got, const Outcome& want, size_t i) {
  EXPECT_EQ(got.ids, want.ids) << "request " << i;
  EXPECT_EQ(got.finish, want.finish) << "request " << i;
  EXPECT_EQ(got.logprobs, want.logprobs) << "request " << i;
  EXPECT_EQ(got.prompt_logprobs, want.prompt_logprobs) << "request " << i;
  ASSERT_FALSE(want.logits.empty());
  for (const auto& [position, row] : want.logits) {
    const auto found = got.logits.find(position);
    ASSERT_NE(found, got.logits.end()) << "request " << i << ", position " << position;
    ASSERT_EQ(found->second, row) << "request " << i << ", position " << position;
  }
}

EngineStats expect_as_alone(const RigOptions& options, const std::vector<Outcome>& want = alone()) {
  const auto rig = make_rig(options);
  if (rig == nullptr) return {};
  std::vector<std::unique_ptr<Client>> clients;
  const std::vector<GenerateRequest> requests = mixture();
  for (const GenerateRequest& request : requests) clients.push_back(std::make_unique<Client>(*rig->engine, request));
  for (size_t i = 0; i < requests.size(); ++i) {
    expect_same(outcome_of(*rig, *clients[i], requests[i].request_id), want[i], i);
  }
  rig->engine->drain(10'000);
  const EngineStats stats = rig->engine->stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
  return stats;
}

TEST_P(BatchInvariance, TheRequestsAloneAreNotTrivial) {
  size_t stopped = 0, tokens = 0;
  for (const Outcome& outcome : alone()) {
    stopped += outcome.finish == FinishReason::Stop ? 1 : 0;
    tokens += outcome.ids.size();
    EXPECT_TRUE(outcome.finish == FinishReason::Stop || outcome.finish == FinishReason::Length);
  }
  EXPECT_GT(tokens, 60u);
}

TEST_P(BatchInvariance, WhateverTheBatchSizeRequestsGetWhatTheyGetAlone) {
  for (const int size : {1, 2, 3, 5, 8, 16}) {
    SCOPED_TRACE(size);
    RigOptions options;
    options.engine.max_running = size;
    options.engine.prefix_cache = false;
    expect_as_alone(options);
  }
}

TEST_P(BatchInvariance, WhateverTheChunkSizeRequestsGetWhatTheyGetAlone) {
  for (const int size : {1, 7, 64, 1000}) {
    SCOPED_TRACE(size);
    RigOptions options;
    options.engine.chunk_tokens = size;
    options.engine.prefix_cache = false;
    expect_as_alone(options);
  }
}

TEST_P(BatchInvariance, APrefixFoundIsAsGoodAsComputed) {
  RigOptions options;
  options.engine.max_running = 2;  // later requests find what earlier ones left
  const EngineStats stats = expect_as_alone(options);
  EXPECT_GE(stats.cached_tokens, 64u * 2);
}

TEST_P(BatchInvariance, SmallPagesAreAsGoodAsLargeOnes) {
  RigOptions options;
  options.page_tokens = 4;
  options.pages = 1000;
  options.engine.max_running = 3;
  EXPECT_GE(expect_as_alone(options).cached_tokens, 68u * 2);
}

TEST_P(BatchInvariance, PreemptedSequencesResumeToTheSameEnd) {
  RigOptions options;
  options.page_tokens = 4;
  options.pages = 45;  // the largest request takes 44
  options.engine.max_context = 180;
  for (const bool prefix_cache : {true, false}) {
    options.engine.prefix_cache = prefix_cache;  // without it everything is computed again
    EXPECT_GT(expect_as_alone(options).preemptions, 0u);
  }
}

TEST_P(BatchInvariance, AStreamGoneMidwayChangesNothingForTheOthers) {
  const std::vector<Outcome>& want = alone();
  const auto rig = make_rig();
  ASSERT_NE(rig, nullptr);
  const std::vector<GenerateRequest> requests = mixture();
  std::vector<std::unique_ptr<Client>> clients;
  for (const GenerateRequest& request : requests) clients.push_back(std::make_unique<Client>(*rig->engine, request));
  for (size_t i = 0; i < clients.size(); i += 3) {
    clients[i]->wait(1 + i % 3);
    clients[i]->stream->cancel();
    clients[i]->stream->cancel();
  }
  for (size_t i = 0; i < clients.size(); ++i) {
    const Outcome got = outcome_of(*rig, *clients[i], requests[i].request_id);
    if (i % 3 != 0) expect_same(got, want[i], i);
  }
}

// Padding rows, and steps that a GPU replays from a recording, write nowhere: not to a first page either.
TEST_P(BatchInvariance, OnlyPagesOfSequencesAreWritten) {
  RigOptions options;
  options.engine.max_running = 5;  // less than a row bucket
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  std::mt19937 random(5);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 5; ++i) {
    GenerateRequest request{.request_id = "p" + std::to_string(i)};
    request.prompt_ids = random_prompt(random, 20);
    request.max_tokens = 30;
    request.sampling.temperature = 0;
    clients.push_back(std::make_unique<Client>(*rig->engine, request));
  }
  for (const auto& client : clients) client->wait();
  rig->engine->drain(10'000);
  Executor& executor = rig->executor();
  for (int layer = 0; layer < rig->config().num_hidden_layers; ++layer) {
    const KvView view = rig->instance->cache->view(layer);
    std::vector<std::byte> page(static_cast<size_t>(view.geometry.latent_page_bytes()));
    int written = 0;
    for (int64_t p = 0; p < options.pages; ++p) {
      executor.memory().download(page.data(), view.latent + p * view.geometry.latent_page_bytes(), page.size(),
                                 executor.stream());
      executor.memory().synchronise(executor.stream());
      written += std::ranges::any_of(page, [](std::byte b) { return b != std::byte{0}; }) ? 1 : 0;
    }
    EXPECT_GT(written, 0) << "layer " << layer;
    EXPECT_LE(written, 5) << "layer " << layer;  // one for each
  }
}

// The CPU's kernels promise the same of themselves when the plan demands it.
TEST(BatchInvarianceOfTheCpu, DeterministicCpuKernelsKeepTheirBitsToo) {
  RigOptions options;
  options.backend = "cpu";
  options.deterministic = true;
  options.threads = 2;
  for (const char* kv : {"bf16", "fp8"}) {
    options.kv = options.index_keys = kv;
    const std::vector<Outcome> want = run_alone(options);
    ASSERT_EQ(want.size(), static_cast<size_t>(kRequests));
    for (const int chunk : {1, 7, 64}) {
      RigOptions batched = options;
      batched.engine.chunk_tokens = chunk;
      batched.engine.max_running = chunk == 7 ? 3 : 16;
      expect_as_alone(batched, want);
    }
    RigOptions tight = options;
    tight.page_tokens = 4;
    tight.pages = 45;
    tight.engine.max_context = 180;
    EXPECT_GT(expect_as_alone(tight, want).preemptions, 0u);
  }
}

}  // namespace
}  // namespace plumb
