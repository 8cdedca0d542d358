// Tools at the HTTP edge: requests, answers, streams, and what tool_choice means to the engine.
#include "grammar/grammar.h"
#include "serve/test_server.h"

namespace plumb {
namespace {

using nlohmann::json;

const char kTools[] =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":
       {"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},
       {"type":"function","function":{"name":"now"}}])";

class ToolsTest : public ServeTest {
 protected:
  Answer ask(const std::string& extra = "") const {
    return chat(std::string(kTools) + (extra.empty() ? "" : ",") + extra);
  }
  json message_of(const Answer& answer) const {
    EXPECT_EQ(answer.status, 200) << answer.body;
    return parsed(answer.body)["choices"][0];
  }
};

std::string call(const std::string& inner) { return "<tool_call>" + inner + "</tool_call>"; }
std::string argument(const std::string& key, const std::string& value) {
  return "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
}

TEST_F(ToolsTest, ApiE31_AWholeAnswer) {
  script_ = says("hm</think>" + call("get_weather" + argument("city", "007") + argument("days", "3")) + call("now"));
  serve();
  const json choice = message_of(ask());
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const json& message = choice["message"];
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(message["reasoning_content"], "hm");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  const json& first = message["tool_calls"][0];
  EXPECT_EQ(first["type"], "function");
  EXPECT_TRUE(first["id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(first["id"], message["tool_calls"][1]["id"]);
  EXPECT_EQ(first["function"]["name"], "get_weather");
  ASSERT_TRUE(first["function"]["arguments"].is_string());
  EXPECT_EQ(parsed(first["function"]["arguments"].get<std::string>()), (json{{"city", "007"}, {"days", 3}}));
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "{}");
  EXPECT_FALSE(first.contains("index"));
}

TEST_F(ToolsTest, ApiE32_AStreamAddsUpToTheWholeAnswer) {
  for (const int per_step : {1, 2, 3, 7, 1000}) {
    script_ = says("hm</think>so " + call("get_weather" + argument("city", "Köln \"x\"") + argument("days", "3")) +
                   call("now"));
    script_.tokens_per_step = per_step;
    serve();
    const json whole = message_of(ask())["message"];
    const Answer answer = ask(R"("stream":true)");
    std::vector<json> calls;
    std::string content, finish;
    for (const std::string& event : sse_events(answer.body)) {
      if (event == "[DONE]") continue;
      const json choice = parsed(event)["choices"][0];
      if (choice["delta"].contains("content")) content += choice["delta"]["content"].get<std::string>();
      if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
      EXPECT_LE(choice["delta"].value("tool_calls", json::array()).size(), 1u) << "some clients read the first alone";
      for (const json& delta : choice["delta"].value("tool_calls", json::array())) {
        const auto index = delta["index"].get<size_t>();
        if (index == calls.size()) {
          EXPECT_EQ(delta["type"], "function");
          EXPECT_EQ(delta["function"]["arguments"], "");
          calls.push_back({{"id", delta["id"]}, {"type", "function"}, {"function", delta["function"]}});
          continue;
        }
        ASSERT_EQ(index + 1, calls.size());
        EXPECT_FALSE(delta.contains("id") || delta.contains("type") || delta["function"].contains("name"))
            << "sent once only";
        auto& arguments = calls[index]["function"]["arguments"].get_ref<std::string&>();
        arguments += delta["function"]["arguments"].get<std::string>();
      }
    }
    EXPECT_EQ(finish, "tool_calls");
    EXPECT_EQ(content, whole["content"]);
    ASSERT_EQ(calls.size(), whole["tool_calls"].size());
    for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i]["function"], whole["tool_calls"][i]["function"]);
    stop();
  }
}

TEST_F(ToolsTest, ApiC20_ACutCallIsLength) {
  script_ = says_until("</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Par", FinishReason::Length);
  serve();
  const json choice = message_of(ask());
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\":\"Par");
}

TEST_F(ToolsTest, ApiE34_ACallInsideReasoningIsACall) {
  script_ = says("why " + call("now"));
  serve();
  const json choice = message_of(ask());
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["reasoning_content"], "why ");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "now");
  EXPECT_TRUE(choice["message"]["content"].is_null());
}

TEST_F(ToolsTest, ApiE35_WhatIsNoCallIsContentAndMarked) {
  for (const std::string& text :
       {call("unknown" + argument("a", "b")), call("now<arg_value>x</arg_value>"), std::string("<tool_call>now")}) {
    script_ = says("</think>" + text);
    serve();
    const json choice = message_of(ask());
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(choice["message"]["content"], text);
    EXPECT_FALSE(choice["message"].contains("tool_calls"));
    EXPECT_EQ(choice["malformed_tool_call"], true);
    stop();
  }
}

TEST_F(ToolsTest, ApiE30_ParallelFalseIsOneCall) {
  script_ = says("</think>" + call("now") + call("now"));
  serve();
  const json choice = message_of(ask(R"("parallel_tool_calls":false)"));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(message_of(ask())["message"]["tool_calls"].size(), 2u);
}

TEST_F(ToolsTest, ApiE30_RequestsAreChecked) {
  serve();
  expect_400(chat(R"("tools":{})"), "tools");
  expect_400(chat(R"("tools":[3])"), "tools[0]");
  expect_400(chat(R"("tools":[{"type":"web_search"}])"), "tools[0].type");
  expect_400(chat(R"("tools":[{"type":"function"}])"), "tools[0].function");
  expect_400(chat(R"("tools":[{"type":"function","function":{"name":"a b"}}])"), "tools[0].function.name");
  expect_400(
      chat(R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])"),
      "tools[1].function.name");
  expect_400(chat(R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])"),
             "tools[0].function.parameters");
  expect_400(chat(R"("tool_choice":"required")"), "tool_choice");
  expect_400(ask(R"("tool_choice":"any")"), "tool_choice");
  expect_400(ask(R"("tool_choice":{"type":"function","function":{"name":"none"}})"), "tool_choice.function.name");
  expect_400(chat(R"("functions":[{"name":"f"}])"), "functions");
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(ToolsTest, ApiE37_ToolChoiceIsEnforcedByConstraint) {
  serve();
  const auto takes = [this](const std::string& text) { return engine_->requests().back().grammar->matches(text); };
  const std::string weather = call("get_weather" + argument("city", "x"));
  ASSERT_EQ(ask(R"("tool_choice":"required")").status, 200);
  EXPECT_TRUE(takes("hm</think>" + weather + call("now")));
  EXPECT_FALSE(takes("hm</think>text"));
  ASSERT_EQ(ask(R"("tool_choice":{"type":"function","function":{"name":"now"}})").status, 200);
  EXPECT_TRUE(takes("</think>" + call("now")));
  EXPECT_FALSE(takes("</think>" + weather));
  ASSERT_EQ(ask(R"("tool_choice":"required","parallel_tool_calls":false)").status, 200);
  EXPECT_FALSE(takes("</think>" + call("now") + call("now")));
  ASSERT_EQ(ask(R"("tool_choice":"auto")").status, 200);
  EXPECT_EQ(engine_->requests().back().grammar, nullptr);
  ASSERT_EQ(ask(R"("response_format":{"type":"json_object"})").status, 200);
  EXPECT_TRUE(takes("</think>{}"));
  EXPECT_TRUE(takes("</think>" + call("now")));
  EXPECT_FALSE(takes("</think>text"));
}

// Free until a call begins; then a call of a strict tool keeps to its schema, and one of another tool to its form.
TEST_F(ToolsTest, ApiE37_StrictToolsAreBoundOnceCalled) {
  serve();
  const auto takes = [this](const std::string& text) { return engine_->requests().back().grammar->matches(text); };
  const auto tool = [](const std::string& name, const std::string& more) {
    return R"({"type":"function","function":{"name":")" + name + R"(","parameters":{"type":"object","properties":)" +
           more + "}}";
  };
  const std::string strict =
      tool("look", R"({"n":{"type":"integer"}},"required":["n"],"additionalProperties":false},"strict":true)");
  const std::string tools = R"("tools":[)" + tool("loo", "{}}") + "," + strict + "]";
  ASSERT_EQ(chat(tools).status, 200);
  ASSERT_NE(engine_->requests().back().grammar, nullptr);
  const std::string good = call("look" + argument("n", "7")), loose = call("loo" + argument("x-y", "a < b"));
  for (const std::string& text :
       {std::string(), std::string("why </think> 1 < 2 <tool"), good, "a" + good + "b " + loose, good + good,
        "in <think> thought " + good, call("loo"), call("loo\n" + argument("a", ""))}) {
    EXPECT_TRUE(takes(text)) << text;
  }
  for (const std::string& text :
       {call("look"), call("look" + argument("n", "x")), call("look" + argument("m", "1")), call("other"),
        std::string("<tool_call>"), "a " + call("look" + argument("n", "1") + argument("n", "2")),
        call("loo k" + argument("a", "b"))}) {
    EXPECT_FALSE(takes(text)) << text;
  }
  ASSERT_EQ(chat(tools + R"(,"tool_choice":"required")").status, 200);
  EXPECT_FALSE(takes("</think>a")) << "nothing but calls";
  ASSERT_EQ(chat(tools + R"(,"tool_choice":"none")").status, 200);
  EXPECT_EQ(engine_->requests().back().grammar, nullptr);
  const std::string odd = tool("odd", R"({"a":{"not":{}}}},"strict":true)");
  expect_400(chat(R"("tools":[)" + strict + "," + odd + "]"), "tools[1].function.parameters.properties.a.not");
}

TEST_F(ToolsTest, ApiE37_NoneMeansNoCall) {
  script_ = says("</think>" + call("now"));
  serve();
  const json choice = message_of(ask(R"("tool_choice":"none")"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
}

TEST_F(ToolsTest, ApiE36_HistoryOfCalls) {
  serve();
  const std::string history =
      R"([{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function",
         "function":{"name":"get_weather","arguments":"{\"city\":\"Paris\"}"}}]},
         {"role":"tool","tool_call_id":"call_1","content":[{"type":"text","text":"sunny"}]}])";
  EXPECT_EQ(chat(kTools, history).status, 200);
  expect_400(chat("", R"([{"role":"user","content":"hi"},{"role":"function","name":"f","content":"x"}])"),
             "messages[1].role");
}

}  // namespace
}  // namespace plumb
