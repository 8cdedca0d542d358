// The engine keeps to a grammar: with temperature 1, in reasoning, over drafts, up to the model's own end of the text.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <fstream>

#include "grammar/compile.h"
#include "rig.h"
#include "text/tokenizer.h"

namespace plumb {
namespace {

using grammar::ContentShape;
using grammar::OutputShape;
using testing::Client;
using testing::make_rig;
using testing::Rig;
using testing::RigOptions;

const Tokenizer& tokenizer() {
  static const Tokenizer one = *Tokenizer::load(testing::model_path());
  return one;
}

std::shared_ptr<const grammar::Vocabulary> vocabulary(int vocab_size) {
  std::vector<std::string> bytes(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (!tokenizer().is_added(id)) bytes[static_cast<size_t>(id)] = tokenizer().token_bytes(id);
  }
  return std::make_shared<const grammar::Vocabulary>(
      std::move(bytes), std::vector<grammar::Vocabulary::Tag>{{"</think>", *tokenizer().token_id("</think>")}});
}

RigOptions trained(int draft_tokens) {
  RigOptions options;
  options.folder = testing::model_path();
  options.threads = 2;
  options.backend = "cpu";
  options.deterministic = true;
  options.engine.max_running = 8;
  options.engine.max_batch_tokens = 512;
  options.engine.chunk_tokens = 128;
  options.engine.draft_tokens = draft_tokens;
  options.engine.observer = [](const StepView&) {};
  return options;
}

std::vector<std::shared_ptr<grammar::Grammar>> grammars(int vocab_size) {
  const auto words = vocabulary(vocab_size);
  std::vector<std::shared_ptr<grammar::Grammar>> out;
  const auto add = [&](const OutputShape& shape) { out.push_back(*grammar::compile(shape, words, 0)); };
  add({.content = {.kind = ContentShape::Kind::JsonSchema,
                   .source = R"({"type":"object","properties":{"n":{"type":"integer"},"é":{"enum":["😀","ü",null]},
                     "s":{"type":"string","maxLength":6}},"required":["n","é","s"],"additionalProperties":false})"}});
  add({.content = {.kind = ContentShape::Kind::Regex, .source = "(yes|no), [0-9]{1,3}"}});
  add({.reasoning = grammar::Reasoning::Open,
       .content = {.kind = ContentShape::Kind::Choice, .choices = {"4", "four"}}});
  return out;
}

struct Outcome {
  std::vector<int32_t> ids{};
  FinishReason finish{};
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

std::vector<Outcome> run(int draft_tokens, bool ignore_eos) {
  const auto rig = make_rig(trained(draft_tokens));
  if (rig == nullptr) return {};
  const std::vector<int32_t> prompt =
      *tokenizer().encode("[gMASK]<sop><|user|>What is 2+2? Answer briefly.<|assistant|><think>");
  std::vector<std::unique_ptr<Client>> clients;
  for (const auto& grammar : grammars(rig->instance->config().vocab_size)) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      GenerateRequest r{.request_id = std::to_string(seed), .prompt_ids = prompt};
      r.max_tokens = 80;
      r.sampling = {.temperature = 1.0f, .seed = seed, .logprobs = 2};
      if (!ignore_eos) r.stop_ids = {2000, 2007, 2009};
      r.grammar = grammar;
      clients.push_back(std::make_unique<Client>(*rig->engine, r));
    }
  }
  std::vector<Outcome> out;
  for (auto& client : clients) {
    client->wait();
    out.push_back({client->ids(), client->finish()});
  }
  return out;
}

TEST(Constraint, HoldsAtTemperatureOne) {
  const std::vector<Outcome> outcomes = run(0, false);
  ASSERT_EQ(outcomes.size(), 12u);
  const auto all = grammars(2048);
  int ended = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (outcomes[i].finish != FinishReason::Stop) continue;  // reasoning may take all tokens
    ++ended;
    const std::string text = tokenizer().decode(outcomes[i].ids, /*skip_special=*/false);
    EXPECT_TRUE(all[i / 4]->matches(text)) << text;
  }
  EXPECT_GE(ended, 8);
}

TEST(Constraint, IsTheSameOverDrafts) {
  const std::vector<Outcome> plain = run(0, false);
  EXPECT_EQ(run(3, false), plain);
}

TEST(Constraint, EndsWithoutAnEosToken) {
  for (const Outcome& one : run(0, true))
    EXPECT_TRUE(one.finish == FinishReason::Stop || one.finish == FinishReason::Length);
}

}  // namespace
}  // namespace plumb
