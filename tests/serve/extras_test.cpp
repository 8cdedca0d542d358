// Lines of the API list that no other file tests by name.
#include "serve/test_server.h"

namespace plumb {
namespace {

using nlohmann::json;

TEST_F(ServeTest, ApiG43_ExtrasReachTheEngine) {
  serve();
  const std::string extras =
      R"("top_k":7,"min_p":0.25,"repetition_penalty":1.5,"min_tokens":2,"ignore_eos":true,"stop_token_ids":[65],"priority":-3,
         "cache_salt":"s","return_token_ids":true,"skip_special_tokens":false,"spaces_between_special_tokens":true,
         "include_stop_str_in_output":true,"add_generation_prompt":true,"chat_template_kwargs":{"enable_thinking":false},"regex":"H.*")";
  const Answer answer = chat(extras);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.count("x-ignored-fields"), 0u);
  const GenerateRequest request = engine_->requests().back();
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.25f);
  EXPECT_FLOAT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_EQ(request.stop_ids, std::vector<int32_t>{65});
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_NE(request.grammar, nullptr);
  EXPECT_EQ(request.prompt_ids.back(), kEndThink);
  EXPECT_EQ(parsed(answer.body)["choices"][0]["token_ids"].size(), 5u);
}

TEST_F(ServeTest, ApiD27_ChoicesInterleaveAndEachEndsForItself) {
  serve();
  engine_->set_step_us(200);
  const std::vector<Streamed> choices = gather_chat(chat(R"("stream":true,"n":3)"), 3);
  for (const Streamed& choice : choices) {
    EXPECT_EQ(choice.reasoning, "Hello");
    EXPECT_EQ(choice.finishes, 1);
  }
}

// A client that adds numbers up would add up any counter inside a delta.
void expect_no_numbers(const json& delta) {
  for (const auto& [key, value] : delta.items()) {
    if (value.is_structured()) {
      expect_no_numbers(value);
    } else {
      EXPECT_TRUE(!value.is_number() || key == "index") << delta.dump();
    }
  }
}

TEST_F(ServeTest, ApiD29_DeltasHoldNoNumbersButTheIndex) {
  script_ = says("a</think>b<tool_call>f</tool_call>");
  serve();
  const Answer answer = chat(R"("stream":true,"tools":[{"type":"function","function":{"name":"f"}}])");
  for (const std::string& event : sse_events(answer.body)) {
    if (event == "[DONE]") continue;
    const json chunk = parsed(event);
    for (const json& choice : chunk["choices"]) expect_no_numbers(choice["delta"]);
  }
}

TEST_F(ServeTest, ApiC18_TheMessageOfAChoice) {
  script_ = says("a</think>b");
  serve();
  const json choice = parsed(chat("").body)["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "b");
  EXPECT_TRUE(choice["message"].contains("refusal") && choice["message"]["refusal"].is_null());
  EXPECT_TRUE(choice.contains("logprobs") && choice["logprobs"].is_null());
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
}

TEST_F(ServeTest, ApiI53_TheBasisOfLogprobsIsTold) {
  serve();
  const json info = parsed(http_get(port(), "/model_info").body);
  EXPECT_NE(info["logprobs"].get<std::string>().find("before temperature"), std::string::npos);
}

TEST_F(ServeTest, ApiK60_EmbeddingsAreRefusedPlainly) {
  serve();
  const Answer answer = http_post(port(), "/v1/embeddings", R"({"input":"x"})");
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(error_of(answer)["message"], "embeddings are not offered by this server");
}

}  // namespace
}  // namespace plumb
