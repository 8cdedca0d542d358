// api.md I52 and K: text completions and the other endpoints.
#include "serve/test_server.h"

namespace plumb {
namespace {

using nlohmann::json;

TEST_F(ServeTest, ApiK59_PromptForms) {
  serve();
  script_ = says("ok");
  const json one = parsed(completion(R"("prompt":"ab")").body);
  EXPECT_EQ(one["object"], "text_completion");
  EXPECT_EQ(one["choices"][0]["text"], "ok");
  EXPECT_EQ(one["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(one["usage"]["prompt_tokens"], 2);
  (void)completion(R"("prompt":[72,105])");
  EXPECT_THAT(engine_->requests().back().prompt_ids, ::testing::ElementsAre(72, 105));
  const json many = parsed(completion(R"("prompt":["a","bc"],"n":2)").body);
  ASSERT_EQ(many["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(many["choices"][i]["index"], i);
  EXPECT_EQ(many["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(many["usage"]["completion_tokens"], 8);
  const std::vector<GenerateRequest> requests = engine_->requests();
  EXPECT_EQ(requests[requests.size() - 2].prompt_ids.size(), 2u);
  EXPECT_EQ(requests[requests.size() - 3].prompt_ids.size(), 1u);
  EXPECT_EQ(parsed(completion(R"("prompt":[[65],[66,67]])").body)["choices"].size(), 2u);
  expect_400(completion(R"("prompt":[65,"a"])"), "prompt[0]");
  expect_400(completion(R"("prompt":["a",[65]])"), "prompt[1]");
  expect_400(completion(R"("prompt":[300])"), "prompt");
  expect_400(completion(R"("prompt":[-1])"), "prompt");
  expect_400(completion(R"("prompt":[1.5])"), "prompt");
  expect_400(completion(R"("prompt":7)"), "prompt");
}

TEST_F(ServeTest, ApiK59_StreamedCompletion) {
  serve();
  script_ = says("a\xc3\xa9");
  const Answer answer = completion(R"("prompt":"x","stream":true,"logprobs":1)");
  const std::vector<std::string> events = sse_events(answer.body);
  std::string text;
  int finishes = 0;
  std::vector<int> offsets;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = parsed(events[i]);
    EXPECT_EQ(chunk["object"], "text_completion");
    const json& choice = chunk["choices"][0];
    text += choice["text"].get<std::string>();
    if (!choice["finish_reason"].is_null()) ++finishes;
    if (choice["logprobs"].is_null()) continue;
    for (const json& offset : choice["logprobs"]["text_offset"]) offsets.push_back(offset);
  }
  EXPECT_EQ(text, "a\xc3\xa9");
  EXPECT_EQ(finishes, 1);
  EXPECT_THAT(offsets, ::testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(ServeTest, ThinkTagsAreTextInRawCompletions) {
  serve();
  script_ = says("a</think>b");
  EXPECT_EQ(parsed(completion(R"("prompt":"x")").body)["choices"][0]["text"], "a</think>b");
}

TEST_F(ServeTest, ApiI52_CompletionLogprobsAndEcho) {
  serve();
  script_ = says("cd");
  script_.events.back().stop_id = -1;
  script_.prompt_logprobs = {{{'b', -1.5f}, {{'b', -1.5f}, {'q', -2.0f}}}};
  const json choice = parsed(completion(R"("prompt":"ab","echo":true,"logprobs":2)").body)["choices"][0];
  EXPECT_EQ(choice["text"], "abcd");
  const json& l = choice["logprobs"];
  EXPECT_EQ(l["tokens"], (json{"a", "b", "c", "d"}));
  EXPECT_EQ(l["token_logprobs"], (json{nullptr, -1.5, -0.5, -0.5}));
  EXPECT_TRUE(l["top_logprobs"][0].is_null());
  EXPECT_EQ(l["top_logprobs"][1], (json{{"b", -1.5}, {"q", -2.0}}));
  EXPECT_EQ(l["text_offset"], (json{0, 1, 2, 3}));
  EXPECT_EQ(engine_->requests()[0].prompt_logprobs, 2);
  const Answer stream = completion(R"("prompt":"ab","echo":true,"logprobs":2,"stream":true)");
  std::string text;
  json tokens = json::array();
  const std::vector<std::string> events = sse_events(stream.body);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json part = parsed(events[i])["choices"][0];
    text += part["text"].get<std::string>();
    if (part["logprobs"].is_object()) {
      for (const json& token : part["logprobs"]["tokens"]) tokens.push_back(token);
    }
  }
  EXPECT_EQ(text, "abcd");
  EXPECT_EQ(tokens, l["tokens"]);
  // Scored texts have an entry for each token drawn: clients take off the last one whether it shows or not.
  script_.events.back().stop_id = '!';
  script_.events.back().logprob = {'!', -0.25f};
  const json ended = parsed(completion(R"("prompt":"ab","echo":true,"logprobs":2)").body)["choices"][0];
  EXPECT_EQ(ended["text"], "abcd");
  EXPECT_EQ(ended["logprobs"]["tokens"], (json{"a", "b", "c", "d", "!"}));
  EXPECT_EQ(ended["logprobs"]["token_logprobs"], (json{nullptr, -1.5, -0.5, -0.5, -0.25}));
  const json unscored = parsed(completion(R"("prompt":"ab","logprobs":2)").body)["choices"][0];
  EXPECT_EQ(unscored["logprobs"]["tokens"], (json{"c", "d"}));
  const json plain = parsed(completion(R"("prompt":[97,98],"echo":true)").body)["choices"][0];
  EXPECT_EQ(plain["text"], "abcd");
  EXPECT_TRUE(plain["logprobs"].is_null());
  expect_400(completion(R"("prompt":"a","logprobs":21)"), "logprobs");
  expect_400(completion(R"("prompt":"a","logprobs":-1)"), "logprobs");
  expect_400(completion(R"("prompt":"a","logprobs":true)"), "logprobs");
}

TEST_F(ServeTest, ApiG42_ZeroTokensScoresThePrompt) {
  serve();
  script_ = says("zz");
  script_.prompt_logprobs = {{{'b', -1.5f}, {}}};
  const json body = parsed(completion(R"("prompt":"ab","echo":true,"logprobs":0,"max_tokens":0)").body);
  EXPECT_EQ(body["choices"][0]["text"], "ab");
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"], (json{"a", "b"}));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
  expect_400(completion(R"("prompt":"ab","max_tokens":0)"), "max_tokens");
}

TEST_F(ServeTest, PartsOfACharacterAreDistinctTokens) {
  serve();
  script_ = says("\xf0\x9f\x98\x80");
  const json l = parsed(completion(R"("prompt":"a","logprobs":1)").body)["choices"][0]["logprobs"];
  EXPECT_EQ(l["tokens"], (json{"bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"}));
}

TEST_F(ServeTest, ApiK57_Models) {
  serve();
  const json list = parsed(http_get(port(), "/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  const json& entry = list["data"][0];
  EXPECT_EQ(entry["id"], "test-model");
  EXPECT_EQ(entry["object"], "model");
  EXPECT_EQ(entry["created"], 1700000000);
  EXPECT_TRUE(entry["owned_by"].is_string());
  EXPECT_EQ(entry["max_model_len"], 4096);
  EXPECT_EQ(entry["root"], "models/test");
  EXPECT_EQ(parsed(http_get(port(), "/v1/models/org/alias").body)["id"], "org/alias");
  EXPECT_EQ(parsed(http_get(port(), "/v1/models/org%2Falias").body)["id"], "org/alias");
  const Answer unknown = http_get(port(), "/v1/models/none");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(error_of(unknown)["code"], "model_not_found");
}

TEST_F(ServeTest, ApiK58_AcceptAnyModelOnRequest) {
  ServerOptions options;
  options.accept_any_model = true;
  serve(options);
  const Answer answer = http_post(port(), "/v1/completions", R"({"model":"gpt-x","prompt":"a"})");
  EXPECT_EQ(parsed(answer.body)["model"], "gpt-x");
}

TEST_F(ServeTest, ApiK61_TokenizeAndBack) {
  serve();
  const json tokens = parsed(http_post(port(), "/tokenize", R"({"prompt":"<|user|>h\u00e9"})").body);
  EXPECT_EQ(tokens["count"], 4);
  EXPECT_EQ(tokens["max_model_len"], 4096);
  EXPECT_EQ(tokens["tokens"], (json{kUser, 'h', 0xc3, 0xa9}));
  for (const std::string& text :
       {std::string("plain"), std::string("\xf0\x9f\x98\x80 \xe2\x82\xac\n\t"), std::string("a\0b", 3)}) {
    const json there = parsed(http_post(port(), "/tokenize", json{{"prompt", text}}.dump()).body);
    const Answer back = http_post(port(), "/detokenize", json{{"tokens", there["tokens"]}}.dump());
    EXPECT_EQ(parsed(back.body)["prompt"], text);
  }
  const Answer messages = http_post(port(), "/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(parsed(messages.body)["count"], 17);
  const Answer bare =
      http_post(port(), "/tokenize", R"({"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false})");
  EXPECT_EQ(parsed(bare.body)["count"], 15);
  const json info = parsed(http_get(port(), "/tokenizer_info").body);
  EXPECT_EQ(info["eos_token"], "<|endoftext|>");
  EXPECT_TRUE(info["bos_token"].is_null());
  EXPECT_EQ(info["model_max_length"], 4096);
  expect_400(http_post(port(), "/tokenize", "{}"), "prompt");
  expect_400(http_post(port(), "/detokenize", R"({"tokens":[1000000]})"), "tokens");
  expect_400(http_post(port(), "/detokenize", R"({"tokens":"x"})"), "tokens");
  EXPECT_EQ(
      parsed(http_post(port(), "/apply-template", R"({"messages":[{"role":"user","content":"hi"}]})").body)["prompt"],
      "[gMASK]<sop><|user|>hi<|assistant|><think>");
}

TEST_F(ServeTest, ApiK62_Health) {
  serve();
  EXPECT_EQ(http_get(port(), "/health").status, 200);
  for (const ServerState state :
       {ServerState::Loading, ServerState::Verifying, ServerState::Draining, ServerState::Failed}) {
    server_->set_state(state);
    const Answer answer = http_get(port(), "/health");
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(parsed(answer.body)["state"], std::string(state_name(state)));
    EXPECT_EQ(http_get(port(), "/health/live").status, 200);
  }
  server_->set_state(ServerState::Ready);
  engine_->set_alive(false);
  EXPECT_EQ(http_get(port(), "/health").status, 503) << "a dead engine is not healthy";
}

TEST_F(ServeTest, ApiK62_LivesBeforeTheModelIsLoaded) {
  ServerOptions options;
  options.served_names = {"m"};
  options.http.port = 0;
  options.access_log = false;
  Server early(options);
  ASSERT_TRUE(early.start().has_value());
  EXPECT_EQ(http_get(early.port(), "/health/live").status, 200);
  EXPECT_EQ(http_get(early.port(), "/health").status, 503);
  EXPECT_EQ(http_get(early.port(), "/v1/models").status, 503);
  EXPECT_EQ(http_get(early.port(), "/plan").status, 503);
  EXPECT_EQ(http_get(early.port(), "/metrics").status, 200);
  EXPECT_EQ(http_post(early.port(), "/v1/completions", R"({"prompt":"a"})").status, 503);
}

TEST_F(ServeTest, ApiK62_MetricsFormat) {
  serve();
  (void)chat("");
  (void)chat(R"("temperature":9)");
  const Answer answer = http_get(port(), "/metrics");
  EXPECT_EQ(answer.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(answer.body.find("plumb_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1"),
            std::string::npos)
      << answer.body;
  EXPECT_NE(answer.body.find("status=\"400\"} 1"), std::string::npos);
  EXPECT_NE(answer.body.find("plumb_generations_total{reason=\"stop\"} 1"), std::string::npos);
  std::string_view rest = answer.body;
  std::string type_of;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.starts_with("# TYPE ")) {
      const std::string_view name = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(name.starts_with("plumb_")) << line;
      EXPECT_EQ(name.find(':'), std::string_view::npos);
      EXPECT_EQ(line.ends_with(" counter"), name.ends_with("_total")) << line;
    } else if (!line.starts_with("#")) {
      EXPECT_TRUE(line.empty() || line.starts_with("plumb_")) << line;
    }
  }
}

TEST_F(ServeTest, ApiK62_ModelInfoPlanVerification) {
  serve();
  const json info = parsed(http_get(port(), "/model_info").body);
  EXPECT_EQ(info["served_names"], (json{"test-model", "org/alias"}));
  EXPECT_EQ(info["model_type"], "glm_moe_dsa");
  EXPECT_EQ(info["max_model_len"], 4096);
  EXPECT_EQ(info["vocab_size"], kVocab);
  EXPECT_EQ(info["plan_fingerprint"], "fp_0123456789abcdef");
  EXPECT_EQ(info["build"]["version"], "test");
  EXPECT_TRUE(info["logprobs"].is_string());
  EXPECT_EQ(parsed(http_get(port(), "/plan").body)["plan"], json::array());
  EXPECT_EQ(http_get(port(), "/verification").status, 404);
  EXPECT_EQ(parsed(http_get(port(), "/health").body)["verification"], "unverified");
  server_->set_verification(R"({"verdict":"pass"})");
  EXPECT_EQ(parsed(http_get(port(), "/verification").body)["verdict"], "pass");
  EXPECT_EQ(parsed(http_get(port(), "/health").body)["verification"], "verified");
}

}  // namespace
}  // namespace plumb
