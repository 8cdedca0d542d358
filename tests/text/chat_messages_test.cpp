#include "text/chat_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

ChatTemplate chat(const std::string& source = "x") {
  auto parsed = ChatTemplate::parse(source, "");
  EXPECT_TRUE(parsed);
  return *std::move(parsed);
}

Json prepared(const char* messages, const std::string& source = "x") {
  const auto out = prepare_messages(Json::parse(messages), chat(source));
  EXPECT_TRUE(out) << out.error().to_string();
  return out ? *out : Json();
}

std::string refusal(const char* messages) {
  const auto out = prepare_messages(Json::parse(messages), chat());
  return out ? "accepted" : out.error().to_string();
}

TEST(PrepareMessages, ArgumentsBecomeObjects) {
  const Json out = prepared(R"([{"role": "assistant", "content": null, "tool_calls": [
      {"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}},
      {"function": {"name": "g", "arguments": {"x": 1}}}, {"function": {"name": "h", "arguments": ""}},
      {"function": {"name": "i"}}]}])");
  const auto arguments = [&](size_t i) { return out[0]["tool_calls"][i]["function"]["arguments"].dump(); };
  EXPECT_EQ(arguments(0), R"({"b":1,"a":[2]})");
  EXPECT_EQ(arguments(1), R"({"x":1})");
  EXPECT_EQ(arguments(2), "{}");
  EXPECT_EQ(arguments(3), "{}");
}

TEST(PrepareMessages, TextPartsJoinAndDevelopersBecomeSystemWhereUnknown) {
  const char* messages =
      R"([{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])";
  EXPECT_EQ(prepared(messages).dump(), R"([{"role":"system","content":"ab"}])");
  EXPECT_EQ(prepared(messages, "{% if m.role == 'developer' %}{% endif %}")[0]["role"], "developer");
}

TEST(PrepareMessages, BothNamesOfReasoningAreOffered) {
  const Json out = prepared(R"([{"role": "assistant", "content": "a", "reasoning": "r"}])");
  EXPECT_EQ(out[0]["reasoning_content"], "r");
  EXPECT_EQ(prepared(R"([{"role": "assistant", "content": "a", "reasoning_content": "r"}])")[0]["reasoning"], "r");
}

TEST(PrepareMessages, RefusalsNameThePlace) {
  EXPECT_THAT(refusal("[]"), HasSubstr("messages"));
  EXPECT_THAT(refusal("{}"), HasSubstr("messages"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("messages[0]"));
  EXPECT_THAT(refusal(R"([{"content": "a"}])"), HasSubstr("messages[0].role"));
  EXPECT_THAT(refusal(R"([{"role": "function", "content": "a"}])"), HasSubstr("messages[0].role"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": "a"}, {"role": "user"}])"), HasSubstr("messages[1].content"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": null}])"), HasSubstr("messages[0].content"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": 5}])"), HasSubstr("messages[0].content"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])"),
              HasSubstr("messages[0].content[0]: is not a text part"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}])"),
              HasSubstr("messages[0].tool_calls[0].function.arguments"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])"), HasSubstr("function.name"));
  EXPECT_EQ(refusal(R"([{"role": "user", "content": ""}])"), "accepted");
  EXPECT_EQ(refusal(R"([{"role": "tool", "content": [{"type": "tool_reference", "name": "f"}]}])"), "accepted");
}

}  // namespace
}  // namespace plumb
