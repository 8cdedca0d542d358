// /v1/messages, /v1/responses, /generate, /abort_request and /health_generate.
#include "grammar/grammar.h"
#include "serve/test_server.h"

namespace plumb {
namespace {

using nlohmann::json;

class OtherApisTest : public ServeTest {
 protected:
  Answer post(std::string_view path, const json& body) const { return http_post(port(), path, body.dump()); }
  static json messages_body(json extra = json::object()) {
    json body = {{"model", "test-model"}, {"max_tokens", 200}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(extra);
    return body;
  }
  static json responses_body(json extra = json::object()) {
    json body = {{"model", "test-model"}, {"input", "hi"}};
    body.update(extra);
    return body;
  }
};

// The events of a stream that names them: (event, data).
std::vector<std::pair<std::string, json>> named_events(const std::string& body) {
  std::vector<std::pair<std::string, json>> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    const std::string block = body.substr(at, end - at);
    at = end == std::string::npos ? body.size() : end + 2;
    if (!block.starts_with("event: ")) continue;
    const size_t line = block.find('\n');
    out.emplace_back(block.substr(7, line - 7), parsed(block.substr(line + 7)));
    EXPECT_EQ(out.back().second["type"], out.back().first);
  }
  return out;
}

const char kCall[] = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>";
const json kMessagesTool = {
    {"name", "get_weather"},
    {"input_schema", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}, {"required", {"city"}}}}};

TEST_F(OtherApisTest, ApiK64_MessagesWhole) {
  serve();
  const json body = parsed(post("/v1/messages", messages_body()).body);
  EXPECT_EQ(body["type"], "message");
  EXPECT_EQ(body["role"], "assistant");
  EXPECT_EQ(body["content"], json::array({{{"type", "text"}, {"text", "Hello"}}}));
  EXPECT_EQ(body["stop_reason"], "end_turn");
  EXPECT_TRUE(body["stop_sequence"].is_null());
  EXPECT_GT(body["usage"]["input_tokens"], 0);
  EXPECT_EQ(body["usage"]["output_tokens"], 5);
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("msg_"));
  // Thinking is off unless it is asked for: the prompt says so.
  EXPECT_EQ(engine_->requests().back().prompt_ids.back(), kEndThink);
  script_ = says("hm</think>so");
  stop();
  serve();
  const json thinking =
      parsed(post("/v1/messages", messages_body({{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}})).body);
  EXPECT_EQ(thinking["content"][0]["thinking"], "hm");
  EXPECT_EQ(thinking["content"][1]["text"], "so");
}

TEST_F(OtherApisTest, ApiK64_MessagesStopReasons) {
  script_ = says("abcXYZ");
  serve();
  const json stopped = parsed(post("/v1/messages", messages_body({{"stop_sequences", {"XY"}}})).body);
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "XY");
  EXPECT_EQ(stopped["content"][0]["text"], "abc");
  EXPECT_EQ(parsed(post("/v1/messages", messages_body({{"max_tokens", 2}})).body)["stop_reason"], "max_tokens");
  stop();
  script_ = says(kCall);
  serve();
  const json called = parsed(post("/v1/messages", messages_body({{"tools", {kMessagesTool}}})).body);
  EXPECT_EQ(called["stop_reason"], "tool_use");
  ASSERT_EQ(called["content"].size(), 1u);
  EXPECT_EQ(called["content"][0]["type"], "tool_use");
  EXPECT_EQ(called["content"][0]["name"], "get_weather");
  EXPECT_EQ(called["content"][0]["input"], (json{{"city", "Paris"}}));
}

TEST_F(OtherApisTest, ApiK64_MessagesStream) {
  script_ = says("hm</think>so " + std::string(kCall));
  serve();
  const Answer answer =
      post("/v1/messages",
           messages_body({{"stream", true}, {"tools", {kMessagesTool}}, {"thinking", {{"type", "enabled"}}}}));
  EXPECT_EQ(answer.body.find("[DONE]"), std::string::npos);
  const auto events = named_events(answer.body);
  ASSERT_GT(events.size(), 8u);
  EXPECT_EQ(events[0].first, "message_start");
  EXPECT_EQ(events[0].second["message"]["content"], json::array());
  EXPECT_EQ(events.back().first, "message_stop");
  EXPECT_EQ(events[events.size() - 2].second["delta"]["stop_reason"], "tool_use");
  EXPECT_GT(events[events.size() - 2].second["usage"]["output_tokens"], 0);
  std::map<int, std::pair<std::string, std::string>> blocks;  // type, text
  int open = -1;
  for (const auto& [name, data] : events) {
    if (name == "content_block_start") {
      EXPECT_EQ(open, -1);
      open = data["index"];
      EXPECT_EQ(open, static_cast<int>(blocks.size()));
      blocks[open].first = data["content_block"]["type"];
    } else if (name == "content_block_delta") {
      ASSERT_EQ(data["index"], open);
      const json& delta = data["delta"];
      for (const char* member : {"thinking", "text", "partial_json"})
        if (delta.contains(member)) blocks[open].second += delta[member].get<std::string>();
    } else if (name == "content_block_stop") {
      EXPECT_EQ(data["index"], open);
      open = -1;
    }
  }
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0], (std::pair<std::string, std::string>("thinking", "hm")));
  EXPECT_EQ(blocks[1], (std::pair<std::string, std::string>("text", "so ")));
  EXPECT_EQ(blocks[2].first, "tool_use");
  EXPECT_EQ(parsed(blocks[2].second), (json{{"city", "Paris"}}));
}

TEST_F(OtherApisTest, ApiK64_MessagesRequests) {
  serve();
  const json history = {
      {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "weather?"}}}}},
      {{"role", "assistant"},
       {"content",
        {{{"type", "thinking"}, {"thinking", "hm"}, {"signature", ""}},
         {{"type", "tool_use"}, {"id", "call_1"}, {"name", "get_weather"}, {"input", {{"city", "Paris"}}}}}}},
      {{"role", "user"}, {"content", {{{"type", "tool_result"}, {"tool_use_id", "call_1"}, {"content", "sunny"}}}}}};
  ASSERT_EQ(post("/v1/messages", messages_body({{"messages", history}, {"system", "be brief"}})).status, 200);
  const std::string prompt = tokenizer_->decode(engine_->requests().back().prompt_ids, false);
  EXPECT_NE(prompt.find("be brief"), std::string::npos);
  EXPECT_NE(prompt.find("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris"), std::string::npos);
  EXPECT_NE(prompt.find("sunny"), std::string::npos);
  const auto refused = [this](const json& extra, const std::string& param, bool drop_max = false) {
    json body = messages_body(extra);
    if (drop_max) body.erase("max_tokens");
    const Answer answer = post("/v1/messages", body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    const json error = parsed(answer.body);
    EXPECT_EQ(error["type"], "error");
    EXPECT_EQ(error["error"]["type"], "invalid_request_error");
    EXPECT_EQ(error["error"]["param"], param) << answer.body;
  };
  refused(json::object(), "max_tokens", true);
  refused({{"messages", json::array()}}, "messages");
  refused({{"messages", {{{"role", "system"}, {"content", "x"}}}}}, "messages[0].role");
  refused({{"messages", {{{"role", "user"}, {"content", {{{"type", "image"}}}}}}}}, "messages[0].content[0][0]");
  refused({{"temperature", 9}}, "temperature");
  refused({{"tools", {{{"type", "web_search_20250305"}, {"name", "w"}}}}}, "tools[0].type");
  refused({{"tool_choice", {{"type", "wibble"}}}}, "tool_choice");
  ASSERT_EQ(
      post("/v1/messages", messages_body({{"tools", {kMessagesTool}}, {"tool_choice", {{"type", "any"}}}})).status,
      200);
  EXPECT_NE(engine_->requests().back().grammar, nullptr);
}

TEST_F(OtherApisTest, ApiK64_ResponsesWhole) {
  script_ = says("hm</think>so " + std::string(kCall));
  serve();
  const json tool = {{"type", "function"}, {"name", "get_weather"}, {"parameters", kMessagesTool["input_schema"]}};
  const json body =
      parsed(post("/v1/responses", responses_body({{"tools", {tool}}, {"instructions", "be brief"}})).body);
  EXPECT_EQ(body["object"], "response");
  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["instructions"], "be brief");
  EXPECT_EQ(body["tools"], json::array({tool}));
  EXPECT_EQ(body["tool_choice"], "auto");
  EXPECT_TRUE(body["error"].is_null());
  ASSERT_EQ(body["output"].size(), 3u);
  EXPECT_EQ(body["output"][0]["type"], "reasoning");
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "hm");
  EXPECT_EQ(body["output"][1]["content"][0]["text"], "so ");
  EXPECT_EQ(body["output"][1]["role"], "assistant");
  EXPECT_EQ(body["output"][2]["type"], "function_call");
  EXPECT_EQ(parsed(body["output"][2]["arguments"].get<std::string>()), (json{{"city", "Paris"}}));
  EXPECT_EQ(body["usage"]["total_tokens"],
            body["usage"]["input_tokens"].get<int>() + body["usage"]["output_tokens"].get<int>());
  const json cut = parsed(post("/v1/responses", responses_body({{"max_output_tokens", 1}})).body);
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
}

TEST_F(OtherApisTest, ApiK64_ResponsesStreamEndsWithTheWholeAnswer) {
  script_ = says("hm</think>so " + std::string(kCall));
  serve();
  const json tool = {{"type", "function"}, {"name", "get_weather"}, {"parameters", kMessagesTool["input_schema"]}};
  const auto events = named_events(post("/v1/responses", responses_body({{"tools", {tool}}, {"stream", true}})).body);
  ASSERT_GT(events.size(), 10u);
  EXPECT_EQ(events[0].first, "response.created");
  EXPECT_EQ(events[1].first, "response.in_progress");
  EXPECT_EQ(events.back().first, "response.completed");
  std::string text, reasoning, arguments;
  int sequence = 0, added = 0, done = 0;
  for (const auto& [name, data] : events) {
    EXPECT_EQ(data["sequence_number"], sequence++);
    if (name == "response.output_text.delta") text += data["delta"].get<std::string>();
    if (name == "response.reasoning_text.delta") reasoning += data["delta"].get<std::string>();
    if (name == "response.function_call_arguments.delta") arguments += data["delta"].get<std::string>();
    if (name == "response.output_item.added") {
      EXPECT_EQ(data["output_index"], added++);
    } else if (name == "response.output_item.done") {
      EXPECT_EQ(data["output_index"], done++);
    }
  }
  EXPECT_EQ(added, 3);
  EXPECT_EQ(done, 3);
  const json& output = events.back().second["response"]["output"];
  EXPECT_EQ(output[0]["content"][0]["text"], reasoning);
  EXPECT_EQ(output[1]["content"][0]["text"], text);
  EXPECT_EQ(output[2]["arguments"], arguments);
  EXPECT_EQ(parsed(arguments), (json{{"city", "Paris"}}));
}

TEST_F(OtherApisTest, ApiK64_ResponsesRequests) {
  serve();
  const json input = {
      {{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "weather?"}}}}},
      {{"type", "reasoning"}, {"summary", json::array()}, {"content", {{{"type", "reasoning_text"}, {"text", "hm"}}}}},
      {{"type", "function_call"},
       {"call_id", "call_1"},
       {"name", "get_weather"},
       {"arguments", "{\"city\":\"Paris\"}"}},
      {{"type", "function_call_output"}, {"call_id", "call_1"}, {"output", "sunny"}}};
  ASSERT_EQ(post("/v1/responses", responses_body({{"input", input}})).status, 200);
  const std::string prompt = tokenizer_->decode(engine_->requests().back().prompt_ids, false);
  EXPECT_NE(prompt.find("<think>hm</think><tool_call>get_weather"), std::string::npos) << prompt;
  EXPECT_NE(prompt.find("sunny"), std::string::npos);
  expect_400(post("/v1/responses", responses_body({{"previous_response_id", "resp_1"}})), "previous_response_id");
  expect_400(post("/v1/responses", responses_body({{"background", true}})), "background");
  expect_400(post("/v1/responses", responses_body({{"input", 3}})), "input");
  expect_400(post("/v1/responses", responses_body({{"input", {{{"type", "input_image"}}}}})), "input[0]");
  expect_400(post("/v1/responses", responses_body({{"tools", {{{"type", "web_search"}}}}})), "tools[0].type");
  const json format = {{"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", {{"type", "integer"}}}}}};
  ASSERT_EQ(post("/v1/responses", responses_body({{"text", format}, {"reasoning", {{"effort", "none"}}}})).status, 200);
  EXPECT_TRUE(engine_->requests().back().grammar->matches("12"));
}

TEST_F(OtherApisTest, ApiK63_GenerateIsOffUnlessAskedFor) {
  serve();
  EXPECT_EQ(post("/generate", {{"text", "hi"}}).status, 404);
}

TEST_F(OtherApisTest, ApiK63_Generate) {
  ServerOptions options;
  options.generate_endpoint = true;
  script_ = says("Hello");
  script_.tokens_per_step = 1;
  serve(options);
  const json body =
      parsed(post("/generate",
                  {{"text", "hi"}, {"rid", "mine"}, {"sampling_params", {{"max_new_tokens", 20}, {"temperature", 0}}}})
                 .body);
  EXPECT_EQ(body["text"], "Hello");
  EXPECT_EQ(body["meta_info"]["id"], "mine");
  EXPECT_EQ(body["meta_info"]["finish_reason"]["type"], "stop");
  EXPECT_EQ(body["meta_info"]["prompt_tokens"], 2);
  EXPECT_EQ(body["meta_info"]["completion_tokens"], 5);
  const json cut = parsed(post("/generate", {{"input_ids", {104, 105}},
                                             {"return_logprob", true},
                                             {"top_logprobs_num", 1},
                                             {"sampling_params", {{"max_new_tokens", 2}}}})
                              .body);
  EXPECT_EQ(cut["text"], "He");
  EXPECT_EQ(cut["meta_info"]["finish_reason"]["type"], "length");
  EXPECT_EQ(cut["meta_info"]["output_token_logprobs"][0], json::array({-0.5, 'H', "H"}));
  const std::vector<std::string> events = sse_events(post("/generate", {{"text", "hi"}, {"stream", true}}).body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string before;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const auto text = parsed(events[i])["text"].get<std::string>();
    EXPECT_TRUE(text.starts_with(before)) << "streamed text is cumulative";
    before = text;
  }
  EXPECT_EQ(before, "Hello");
  EXPECT_EQ(parsed(events[events.size() - 2])["meta_info"]["finish_reason"]["type"], "stop");
  expect_400(post("/generate", json::object()), "text");
  expect_400(post("/generate", {{"text", "hi"}, {"sampling_params", {{"wibble", 1}}}}), "sampling_params.wibble");
}

TEST_F(OtherApisTest, ApiM72_AbortByName) {
  script_ = says(std::string(2000, 'x'));
  serve();
  engine_->set_step_us(1000);
  for (const char* name : {"my-request", "chatcmpl-my-request"}) {
    Client client(port());
    client.send(post_text("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})",
                          "x-request-id: my-request\r\n"));
    ASSERT_TRUE(engine_->wait_running(1));
    const Answer told = post("/abort_request", {{"rid", name}});
    EXPECT_EQ(told.status, 200) << told.body;
    EXPECT_EQ(parsed(told.body)["aborted"], 1);
    const Answer answer = client.read_answer();
    EXPECT_EQ(answer.status, 409);
    EXPECT_EQ(answer.headers.at("x-should-retry"), "false");
    EXPECT_EQ(error_of(answer)["code"], "aborted");
    EXPECT_TRUE(engine_->wait_idle());
  }
  EXPECT_EQ(post("/abort_request", {{"rid", "none"}}).status, 404);
  expect_400(post("/abort_request", json::object()), "rid");
  Client client(port());
  client.send(post_text("/v1/chat/completions", R"({"stream":true,"messages":[{"role":"user","content":"hi"}]})"));
  ASSERT_TRUE(engine_->wait_running(1));
  EXPECT_EQ(parsed(post("/abort_request", {{"abort_all", true}}).body)["aborted"], 1);
  const Answer answer = client.read_answer();
  EXPECT_NE(answer.body.find("\"code\":\"aborted\""), std::string::npos);
  EXPECT_EQ(answer.body.find("[DONE]"), std::string::npos);
}

TEST_F(OtherApisTest, ApiK62_HealthGenerate) {
  serve();
  EXPECT_EQ(http_get(port(), "/health_generate").status, 200);
  EXPECT_EQ(engine_->requests().back().max_tokens, 1);
  script_ = says_until("", FinishReason::Error);
  EXPECT_EQ(http_get(port(), "/health_generate").status, 503);
}

}  // namespace
}  // namespace plumb
