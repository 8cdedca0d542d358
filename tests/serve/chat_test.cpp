// api.md B, C, D, F, H, I over the real server.
#include "serve/test_server.h"

namespace plumb {
namespace {

using nlohmann::json;

TEST_F(ServeTest, ApiB12_EventsAreOneDataLineAndABlankLine) {
  serve();
  script_ = says("</think>line\nbreak \"quoted\" \xf0\x9f\x98\x80 \x7f\t.");
  const Answer answer = chat(R"("stream":true)");
  std::string_view rest = answer.body;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    ASSERT_NE(end, std::string_view::npos);
    const std::string_view event = rest.substr(0, end);
    EXPECT_EQ(event.substr(0, 6), "data: ");
    EXPECT_EQ(event.find_first_of("\r\n"), std::string_view::npos);
    rest.remove_prefix(end + 2);
  }
  EXPECT_EQ(gather_chat(answer)[0].content, "line\nbreak \"quoted\" \xf0\x9f\x98\x80 \x7f\t.");
}

TEST_F(ServeTest, ApiB13_EndsWithDoneAndNothingAfter) {
  serve();
  const std::string body = chat(R"("stream":true)").body;
  EXPECT_TRUE(body.ends_with("\n\ndata: [DONE]\n\n"));
  EXPECT_EQ(body.find("[DONE]"), body.rfind("[DONE]"));
}

TEST_F(ServeTest, ApiB14_ErrorInsideAStream) {
  serve();
  script_ = {.events = spell("ab")};
  TokenEvent last;
  last.finish = FinishReason::Error;
  last.error = Error{Code::Internal, "the step failed", "no memory", {}};
  script_.events.push_back(last);
  const Answer answer = chat(R"("stream":true)");
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.whole);
  const std::vector<std::string> events = sse_events(answer.body);
  const json error = parsed(events.back())["error"];
  EXPECT_EQ(error["message"], "the step failed: no memory");
  EXPECT_EQ(answer.body.find("[DONE]"), std::string::npos);
  const Answer whole = chat("");
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(error_of(whole)["message"], "the step failed: no memory");
}

TEST_F(ServeTest, ApiB15_EveryEventIsValidUtf8WhereverTokensSplitACharacter) {
  serve();
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
  for (int per_step = 1; per_step <= 12; ++per_step) {
    script_ = says("</think>" + text);
    script_.tokens_per_step = per_step;
    const Answer answer = chat(R"("stream":true)");
    for (const std::string& event : sse_events(answer.body)) {
      EXPECT_EQ(event.find("\xef\xbf\xbd"), std::string::npos) << event;  // no replacement character
    }
    EXPECT_EQ(gather_chat(answer)[0].content, text) << per_step;
  }
}

TEST_F(ServeTest, CharacterCutByLengthBecomesOneReplacement) {
  serve();
  script_ = says("</think>a\xf0\x9f\x98\x80");
  const Answer stream = chat(R"("stream":true,"max_tokens":4)");
  const Answer whole = chat(R"("max_tokens":4)");
  EXPECT_EQ(gather_chat(stream)[0].content, "a\xef\xbf\xbd");
  EXPECT_EQ(gather_chat(stream)[0].finish, "length");
  EXPECT_EQ(parsed(whole.body)["choices"][0]["message"]["content"], "a\xef\xbf\xbd");
}

TEST_F(ServeTest, ApiB16_ChunksShareIdCreatedModel) {
  serve();
  const Answer answer = chat(R"("stream":true)");
  const std::vector<std::string> events = sse_events(answer.body);
  const json first = parsed(events[0]);
  EXPECT_EQ(first["id"].get<std::string>().rfind("chatcmpl-", 0), 0u);
  EXPECT_EQ(first["model"], "test-model");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = parsed(events[i]);
    for (const char* name : {"id", "created", "model", "object"}) EXPECT_EQ(chunk[name], first[name]);
    EXPECT_TRUE(chunk["choices"].is_array());
    EXPECT_FALSE(chunk["choices"].empty());
    EXPECT_FALSE(chunk.contains("usage"));
  }
}

TEST_F(ServeTest, ApiC17_WholeAnswer) {
  serve();
  script_ = says("thinking</think>The answer.");
  script_.cached_tokens = 5;
  const Answer answer = chat(R"("model2":null)");
  const json body = parsed(answer.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "test-model");
  EXPECT_TRUE(body["created"].is_number_integer());
  EXPECT_EQ(body["system_fingerprint"], "fp_0123456789abcdef");
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "The answer.");
  EXPECT_TRUE(choice["message"]["refusal"].is_null());
  EXPECT_EQ(choice["message"]["reasoning_content"], "thinking");
  const json& usage = body["usage"];
  EXPECT_EQ(usage["completion_tokens"], 20);
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + 20);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 5);
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 9);  // the closing tag with it
  // "[gMASK]<sop>" is 12 bytes here; then <|user|>, h, i, <|assistant|>, <think>
  EXPECT_EQ(usage["prompt_tokens"], 17);
}

TEST_F(ServeTest, ApiC17_AliasIsEchoed) {
  serve();
  const Answer answer =
      http_post(port(), "/v1/chat/completions", R"({"model":"org/alias","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(parsed(answer.body)["model"], "org/alias");
}

TEST_F(ServeTest, ApiC19_FinishReasonsAndOurDetail) {
  serve();
  script_ = says("</think>abcdef");
  EXPECT_EQ(parsed(chat(R"("max_tokens":3)").body)["choices"][0]["finish_reason"], "length");
  const json stopped = parsed(chat(R"("stop":"cd")").body)["choices"][0];
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["stop_reason"], "cd");
  EXPECT_EQ(stopped["message"]["content"], "ab");
  EXPECT_TRUE(parsed(chat("").body)["choices"][0]["stop_reason"].is_null());
  script_ = says_until("</think>ab", FinishReason::Stop, 'c');
  EXPECT_EQ(parsed(chat(R"("stop_token_ids":[99])").body)["choices"][0]["stop_reason"], 99);
}

TEST_F(ServeTest, ApiC21_UsageOfSeveralChoices) {
  serve();
  script_ = says("</think>abcd");
  const json body = parsed(chat(R"("n":3,"seed":1)").body);
  ASSERT_EQ(body["choices"].size(), 3u);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 17);
  EXPECT_EQ(body["usage"]["completion_tokens"], 15);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(body["choices"][i]["index"], i);
  const std::vector<GenerateRequest> requests = engine_->requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].sampling.seed, 1u);
  EXPECT_NE(requests[1].sampling.seed, requests[2].sampling.seed);
  (void)chat(R"("n":3,"seed":1)");
  EXPECT_EQ(engine_->requests()[4].sampling.seed, requests[1].sampling.seed) << "derived, not drawn";
}

TEST_F(ServeTest, ApiC22_ContentIsTextWithThinkingOff) {
  serve();
  script_ = says("plain");
  const json message =
      parsed(chat(R"("chat_template_kwargs":{"enable_thinking":false})").body)["choices"][0]["message"];
  EXPECT_EQ(message["content"], "plain");
  EXPECT_FALSE(message.contains("reasoning_content"));
  script_ = says("");
  EXPECT_EQ(parsed(chat(R"("reasoning_effort":"none")").body)["choices"][0]["message"]["content"], "");
}

TEST_F(ServeTest, ApiD23_RoleComesOnceAndFirst) {
  serve();
  const Answer answer = chat(R"("stream":true,"n":2)");
  const std::vector<Streamed> s = gather_chat(answer, 2);
  EXPECT_EQ(s[0].role, "assistant");
  EXPECT_EQ(s[1].role, "assistant");
  const json first = parsed(sse_events(answer.body)[0]);
  EXPECT_EQ(first["choices"][0]["delta"], (json{{"role", "assistant"}, {"content", ""}}));
}

TEST_F(ServeTest, ApiD24_NoEmptyDeltas) {
  serve();
  script_ = says("</think>\xf0\x9f\x98\x80");
  const Answer answer = chat(R"("stream":true)");
  const std::vector<std::string> events = sse_events(answer.body);
  EXPECT_EQ(events.size(), 4u);  // role, the character, the end, [DONE]
}

TEST_F(ServeTest, ApiD25_ExactlyOneFinishReasonForEachChoice) {
  serve();
  for (const char* extra : {"", R"(,"max_tokens":2)", R"(,"stop":"l")", R"(,"n":4)", R"(,"max_tokens":1)"}) {
    const int choices = std::string_view(extra).find("\"n\"") == std::string_view::npos ? 1 : 4;
    script_ = says("</think>Hello");
    for (const Streamed& s : gather_chat(chat(std::string(R"("stream":true)") + extra), choices)) {
      EXPECT_EQ(s.finishes, 1) << extra;
    }
  }
}

TEST_F(ServeTest, ApiD26_UsageChunk) {
  serve();
  const Answer answer = chat(R"("stream":true,"stream_options":{"include_usage":true})");
  const std::vector<std::string> events = sse_events(answer.body);
  ASSERT_GE(events.size(), 3u);
  const json last = parsed(events[events.size() - 2]);
  EXPECT_EQ(last["choices"], json::array());
  EXPECT_EQ(last["usage"]["completion_tokens"], 5);
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const json chunk = parsed(events[i]);
    EXPECT_TRUE(chunk.contains("usage") && chunk["usage"].is_null());
  }
  expect_400(chat(R"("stream_options":{"include_usage":true})"), "stream_options");
  expect_400(chat(R"("stream":false,"stream_options":{})"), "stream_options");
}

// Property: however many tokens a step brings, the deltas joined are the whole answer.
TEST_F(ServeTest, ApiD28_DeltasJoinToTheWholeAnswer) {
  serve();
  const std::string text = "some th\xc3\xb6ught</think>Answer \xf0\x9f\x98\x80 with <stop and more <stop> rest";
  for (const char* fields :
       {R"("stop":["<stop>"])", R"("max_tokens":30)", R"("stop":["<stopx"],"logprobs":true,"top_logprobs":2)",
        R"("stop":["<stop>"],"include_stop_str_in_output":true,"logprobs":true)", R"("separate_reasoning":false)",
        R"("logprobs":true,"max_tokens":25)"}) {
    for (int per_step : {1, 2, 3, 7, 100}) {
      script_ = says(text);
      script_.tokens_per_step = per_step;
      const Streamed s = gather_chat(chat(std::string(fields) + R"(,"stream":true)"))[0];
      const json whole = parsed(chat(fields).body)["choices"][0];
      EXPECT_EQ(whole["message"]["content"], s.content) << fields << per_step;
      EXPECT_EQ(whole["message"].value("reasoning_content", ""), s.reasoning) << fields << per_step;
      EXPECT_EQ(whole["finish_reason"], s.finish);
      EXPECT_EQ(whole["stop_reason"], s.stop_reason);
      const json entries = whole["logprobs"].is_null() ? json::array() : whole["logprobs"]["content"];
      EXPECT_EQ(entries, s.logprobs) << fields << per_step;
    }
  }
}

TEST_F(ServeTest, ApiF38_ReasoningFieldNames) {
  ServerOptions options;
  options.reasoning_field = ReasoningField::Both;
  serve(options);
  script_ = says("why</think>what");
  const json message = parsed(chat("").body)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "why");
  EXPECT_EQ(message["reasoning"], "why");
  EXPECT_NE(chat(R"("stream":true)").body.find("\"reasoning\":"), std::string::npos);
}

TEST_F(ServeTest, ApiF38_EitherNameIsReadInHistory) {
  serve();
  for (const char* name : {"reasoning_content", "reasoning"}) {
    const std::string messages = R"([{"role":"user","content":"q"},{"role":"assistant","content":"a",")" +
                                 std::string(name) + R"(":"because"},{"role":"user","content":"r"}])";
    const Answer answer = http_post(port(), "/apply-template", R"({"messages":)" + messages + "}");
    EXPECT_NE(parsed(answer.body)["prompt"].get<std::string>().find("<think>because</think>a"), std::string::npos);
  }
}

TEST_F(ServeTest, ApiF39_UnfinishedThinkingIsReasoningOnly) {
  serve();
  script_ = says("still thinking about it");
  const json choice = parsed(chat(R"("max_tokens":8)").body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["reasoning_content"], "still th");
  EXPECT_EQ(choice["message"]["content"], "");
}

TEST_F(ServeTest, ApiF39_SpelledTagsAreTagsToo) {
  serve();
  script_ = {.events = spell("a<")};  // "</think>" by ordinary tokens
  for (const char c : std::string_view("/think>b")) {
    for (const TokenEvent& event : spell(std::string_view(&c, 1))) script_.events.push_back(event);
  }
  script_.events.push_back(says("").events.back());
  const Streamed s = gather_chat(chat(R"("stream":true)"))[0];
  EXPECT_EQ(s.reasoning, "a");
  EXPECT_EQ(s.content, "b");
}

TEST_F(ServeTest, ApiF40_InlineReasoningOnRequest) {
  serve();
  script_ = says("why</think>what");
  const json message = parsed(chat(R"("separate_reasoning":false)").body)["choices"][0]["message"];
  EXPECT_EQ(message["content"], "why</think>what");
  expect_400(chat(R"("reasoning_effort":"extreme")"), "reasoning_effort");
}

TEST_F(ServeTest, ApiF41_StopStringsAreNotSearchedInReasoning) {
  serve();
  script_ = says("a STOP b</think>c STOP d");
  const json message = parsed(chat(R"("stop":"STOP")").body)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "a STOP b");
  EXPECT_EQ(message["content"], "c ");
  const json early = parsed(chat(R"("stop":"STOP","stop_in_reasoning":true)").body)["choices"][0];
  EXPECT_EQ(early["message"]["reasoning_content"], "a ");
  EXPECT_EQ(early["message"]["content"], "");
  EXPECT_EQ(early["finish_reason"], "stop");
}

TEST_F(ServeTest, ApiH47_NothingOfAStopStringLeaks) {
  serve();
  for (const char* stop : {"l", "lo w", "\xf0\x9f\x98\x80", "Hello world \xf0\x9f\x98\x80!"}) {
    script_ = says("</think>Hello world \xf0\x9f\x98\x80!");
    const Streamed s = gather_chat(chat(R"("stream":true,"stop":)" + json(stop).dump()))[0];
    const std::string all = "Hello world \xf0\x9f\x98\x80!";
    EXPECT_EQ(s.content, all.substr(0, all.find(stop))) << stop;
    EXPECT_EQ(s.finish, "stop");
    EXPECT_EQ(s.stop_reason, stop);
    EXPECT_TRUE(engine_->wait_idle());
  }
}

TEST_F(ServeTest, ApiH48_HeldTextIsReleased) {
  serve();
  script_ = says("</think>ab<en");
  EXPECT_EQ(gather_chat(chat(R"("stream":true,"stop":"<end>")"))[0].content, "ab<en");
}

TEST_F(ServeTest, ApiH49_EarliestThenLongest) {
  serve();
  script_ = says("</think>xxabcd");
  EXPECT_EQ(parsed(chat(R"("stop":["bc","abc","ab"])").body)["choices"][0]["stop_reason"], "abc");
}

TEST_F(ServeTest, StopMatchCancelsTheEngineAndCountsWhatWasShown) {
  serve();
  engine_->set_step_us(1000);
  script_ = says("</think>ab" + std::string(2000, 'x'));
  const json body = parsed(chat(R"("stop":"b")").body);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_TRUE(engine_->wait_idle());
  EXPECT_EQ(engine_->aborts(), 1u);
  EXPECT_LT(engine_->tokens(), 100u);
}

TEST_F(ServeTest, MinTokensHoldBackStopStrings) {
  serve();
  script_ = says("</think>abab");
  EXPECT_EQ(parsed(chat(R"("stop":"b","min_tokens":4)").body)["choices"][0]["message"]["content"], "aba");
  EXPECT_EQ(engine_->requests()[0].min_tokens, 4);
}

TEST_F(ServeTest, ApiH50_StopIdsGoToTheEngine) {
  serve();
  (void)chat("");
  EXPECT_THAT(engine_->requests()[0].stop_ids, ::testing::ElementsAre(kEndOfText, kUser));
  (void)chat(R"("ignore_eos":true,"stop_token_ids":[65])");
  EXPECT_THAT(engine_->requests()[1].stop_ids, ::testing::ElementsAre(65));
}

TEST_F(ServeTest, ApiI51_ChatLogprobs) {
  serve();
  script_ = says("think</think>a\xc3\xa9z");
  const json whole = parsed(chat(R"("logprobs":true,"top_logprobs":2)").body)["choices"][0]["logprobs"];
  ASSERT_EQ(whole["content"].size(), 4u) << "one for each token of visible content";
  EXPECT_TRUE(whole["refusal"].is_null());
  std::string bytes;
  for (const json& entry : whole["content"]) {
    EXPECT_TRUE(entry["logprob"].is_number());
    EXPECT_EQ(entry["top_logprobs"].size(), 2u);
    for (const json& byte : entry["bytes"]) bytes += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(bytes, "a\xc3\xa9z");
  EXPECT_EQ(engine_->requests()[0].sampling.logprobs, 2);
  const json none = parsed(chat(R"("logprobs":true)").body)["choices"][0]["logprobs"];
  EXPECT_EQ(none["content"][0]["top_logprobs"], json::array());
  (void)chat(R"("logprobs":false)");
  EXPECT_EQ(engine_->requests()[2].sampling.logprobs, -1);
}

TEST_F(ServeTest, ApiI51_MinusInfinityIsTheFloor) {
  serve();
  script_ = says("</think>ab");
  script_.events[1].logprob.logprob = -std::numeric_limits<float>::infinity();
  script_.events[1].top[0].logprob = -std::numeric_limits<float>::infinity();
  script_.events[2].logprob.logprob = std::numeric_limits<float>::quiet_NaN();
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const Answer answer = chat(std::string(R"("logprobs":true,"top_logprobs":1,"top_k":1)") + stream);
    EXPECT_EQ(answer.status, 200);
    EXPECT_NE(answer.body.find("\"logprob\":-9999.0"), std::string::npos);
    EXPECT_EQ(answer.body.find("inf"), std::string::npos);
    EXPECT_EQ(answer.body.find("nan"), std::string::npos);
  }
}

TEST_F(ServeTest, TokenIdsOnRequest) {
  serve();
  script_ = says("</think>ab");
  const json choice = parsed(chat(R"("return_token_ids":true)").body)["choices"][0];
  EXPECT_EQ(choice["token_ids"], (json{kEndThink, 'a', 'b'}));
  EXPECT_EQ(choice["prompt_token_ids"].size(), 17u);
}

}  // namespace
}  // namespace plumb
