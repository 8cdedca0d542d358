// The way from tokens to text by itself: every cut gives the same bytes.
#include "serve/choice_text.h"

#include "serve/reasoning_parser.h"
#include "serve/strict_json.h"
#include "serve/test_server.h"

namespace plumb {
namespace {

using Start = ReasoningParser::Start;

ReasoningParser::Piece feed(Start start, const std::vector<std::string>& parts) {
  ReasoningParser parser(start);
  ReasoningParser::Piece all;
  const auto add = [&](const ReasoningParser::Piece& piece) {
    EXPECT_TRUE(piece.reasoning.empty() || all.content.empty()) << "reasoning after content";
    all.reasoning += piece.reasoning;
    all.content += piece.content;
  };
  for (const std::string& part : parts) add(parser.push(part));
  add(parser.flush());
  return all;
}

struct SplitCase {
  Start start = Start::Off;
  std::string text{}, reasoning{}, content{};
};

// Property: one fixed text, cut at every pair of points, splits the same way.
TEST(ReasoningParser, EveryCutGivesTheSameSplit) {
  const SplitCase cases[] = {
      {Start::InReasoning, "a<b</think>c</think>d", "a<b", "c</think>d"},
      {Start::InReasoning, "<think>why</think>", "why", ""},
      {Start::InReasoning, "no end </thin", "no end </thin", ""},
      {Start::InReasoning, "x<tool_call>f</tool_call>", "x", "<tool_call>f</tool_call>"},
      {Start::InReasoning, "</think>now", "", "now"},
      {Start::InReasoning, "<thi", "<thi", ""},
      {Start::MayBegin, "<think>a</think>b", "a", "b"},
      {Start::MayBegin, "plain <think>", "", "plain <think>"},
      {Start::MayBegin, "<thinking>", "", "<thinking>"},
      {Start::Off, "a</think>b", "", "a</think>b"},
  };
  for (const SplitCase& c : cases) {
    for (size_t i = 0; i <= c.text.size(); ++i) {
      for (size_t k = i; k <= c.text.size(); ++k) {
        const auto piece = feed(c.start, {c.text.substr(0, i), c.text.substr(i, k - i), c.text.substr(k)});
        EXPECT_EQ(piece.reasoning, c.reasoning) << c.text << " at " << i << ", " << k;
        EXPECT_EQ(piece.content, c.content) << c.text << " at " << i << ", " << k;
      }
    }
  }
}

TEST(ReasoningParser, TagTokensAreCertain) {
  ReasoningParser parser(Start::InReasoning);
  EXPECT_EQ(parser.push("a</thi").reasoning, "a");
  EXPECT_EQ(parser.tag(ReasoningParser::Tag::End).reasoning, "</thi");
  EXPECT_EQ(parser.push("c").content, "c");
  ReasoningParser opens(Start::MayBegin);
  EXPECT_EQ(opens.tag(ReasoningParser::Tag::Begin).content, "");
  EXPECT_EQ(opens.push("why").reasoning, "why");
}

TEST(StrictJson, RefusesWhatIsAmbiguousOrTooDeep) {
  EXPECT_TRUE(parse_strict_json(R"({"a":[1,{"b":null}],"c":"\u00e9\ud83d\ude00"})").has_value());
  for (const char* text : {R"({"a":1,"a":1})", R"([{"b":{"a":1,"a":2}}])", "[1,]", "{\"a\"}", "nul", "\"\\ud800\"",
                           "\"\\udc00x\"", "\"\xff\"", "[1] [2]", "", "1e999", "{\"a\":1}}"}) {
    EXPECT_FALSE(parse_strict_json(text).has_value()) << text;
  }
  EXPECT_TRUE(parse_strict_json(std::string(100, '[') + std::string(100, ']')).has_value());
  EXPECT_FALSE(parse_strict_json(std::string(101, '[') + std::string(101, ']')).has_value());
}

TEST(StrictJson, KeepsTheOrderOfKeysAndTakesManyOfThem) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += (i == 0 ? "\"k" : ",\"k") + std::to_string(200'000 - i) + "\":0";
  const auto json = parse_strict_json(text + "}");
  ASSERT_TRUE(json.has_value());
  EXPECT_EQ(json->begin().key(), "k200000");
  EXPECT_EQ(json->size(), 200'000u);
}

TEST(StrictJson, StringsAreEscapedWhole) {
  std::string out;
  append_json_string(out, "a\"\\\n\x01\xc3\xa9\xff");
  EXPECT_EQ(nlohmann::json::parse(out).get<std::string>(), "a\"\\\n\x01\xc3\xa9\xef\xbf\xbd");
}

}  // namespace
}  // namespace plumb
