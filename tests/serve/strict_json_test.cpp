// Bodies are untrusted.
#include "serve/strict_json.h"
#include "serve/test_server.h"

namespace plumb {
namespace {

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
