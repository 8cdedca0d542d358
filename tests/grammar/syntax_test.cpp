// What each notation accepts, told by whole texts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "grammar/compile.h"

namespace plumb::grammar {
namespace {

std::shared_ptr<const Vocabulary> byte_vocabulary() {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  return std::make_shared<const Vocabulary>(std::move(bytes), std::vector<Vocabulary::Tag>{});
}

std::shared_ptr<Grammar> compiled(ContentShape::Kind kind, std::string source, std::vector<std::string> choices = {}) {
  Result<std::shared_ptr<Grammar>> grammar = compile(
      {.content = {.kind = kind, .source = std::move(source), .choices = std::move(choices)}}, byte_vocabulary(), 0);
  EXPECT_TRUE(grammar) << (grammar ? "" : grammar.error().to_string());
  return grammar ? *grammar : nullptr;
}

std::string refusal(ContentShape::Kind kind, std::string source) {
  const Result<std::shared_ptr<Grammar>> grammar =
      compile({.content = {.kind = kind, .source = std::move(source)}}, byte_vocabulary(), 0);
  EXPECT_FALSE(grammar);
  return grammar ? "" : grammar.error().what;
}

using Kind = ContentShape::Kind;

void expect_language(Kind kind, const std::string& source, const std::vector<std::string>& in,
                     const std::vector<std::string>& out) {
  const auto grammar = compiled(kind, source);
  ASSERT_NE(grammar, nullptr) << source;
  for (const std::string& text : in) EXPECT_TRUE(grammar->matches(text)) << source << " should take " << text;
  for (const std::string& text : out) EXPECT_FALSE(grammar->matches(text)) << source << " should not take " << text;
}

TEST(Regex, TakesWhatItSays) {
  expect_language(Kind::Regex, "a|b+c?", {"a", "b", "bbc"}, {"", "ab", "c"});
  expect_language(Kind::Regex, "^[a-c]{2,3}$", {"ab", "abc"}, {"a", "abcd", "xy"});
  expect_language(Kind::Regex, "(?:x(?P<n>y)){2}", {"xyxy"}, {"xy", "xyxyxy"});
  expect_language(Kind::Regex, "\\d+\\.\\d{2}", {"3.14", "00.00"}, {"3.1", ".11", "3,14"});
  expect_language(Kind::Regex, "[^a]", {"b", "ü", "😀"}, {"a", "", "\xf0\x9f"});
  expect_language(Kind::Regex, "[à-ü]+", {"éü"}, {"e", "\xc3"});
  expect_language(Kind::Regex, ".", {"x", "😀"}, {"\n", "xy"});
  expect_language(Kind::Regex, "\\u00e9\\x41\\[", {"éA["}, {"éA"});
  expect_language(Kind::Regex, "a{,2}", {"a{,2}"}, {"aa"});
  expect_language(Kind::Regex, "(a*)*b", {"b", "aab"}, {"aa"});
  expect_language(Kind::Regex, "(a*)+", {"", "aaa"}, {"b"});
}

TEST(Regex, RefusesWithThePlace) {
  EXPECT_EQ(refusal(Kind::Regex, "ab(?=c)"),
            "at character 4 of the pattern: look-around, flags and the like are not offered");
  for (const char* bad :
       {"(", ")", "[a", "a{3,2}", "*", "\\1", "a\\b", "[z-a]", "a(b$)", "\\", "(?i)a", "a++", "\\p{L}"}) {
    EXPECT_NE(refusal(Kind::Regex, bad), "") << bad;
  }
}

TEST(Ebnf, TakesWhatItSays) {
  expect_language(Kind::Ebnf,
                  "root ::= greeting \" \" name # hello\nname ::= [A-Z] [a-z]*\ngreeting ::= \"hi\" | \"ho\"",
                  {"hi Anna", "ho B"}, {"hi anna", "hi", "ho  B"});
  expect_language(Kind::Ebnf, "root ::= \"(\" root* \")\"", {"()", "(()(()))"}, {"(", "())", ""});
  expect_language(Kind::Ebnf, "list ::= item (\",\" item)*\nitem ::= \"\\x41\" | \"\\u00e9\" | '\\n'", {"A,é,\n"},
                  {"A,"});
  expect_language(Kind::Ebnf, "root ::= \"a\"{2,3} \"b\"?", {"aa", "aaab"}, {"a", "aaaa"});
  expect_language(Kind::Ebnf, "root ::= \"a\" root \"b\" | \"\"", {"", "aabb"}, {"aab"});
}

TEST(Ebnf, RefusesWithTheLine) {
  EXPECT_EQ(refusal(Kind::Ebnf, "root ::= \"a\"\nb := c"), "line 2 of the grammar: ':' begins nothing known");
  EXPECT_NE(refusal(Kind::Ebnf, "root ::= missing").find("'missing' is used and not defined"), std::string::npos);
  EXPECT_NE(refusal(Kind::Ebnf, "root ::= root \"a\" | \"b\"").find("calls itself"), std::string::npos);
  EXPECT_NE(refusal(Kind::Ebnf, "root ::= a \"x\"\na ::= \"\" | b\nb ::= root").find("calls itself"),
            std::string::npos);
  EXPECT_EQ(refusal(Kind::Ebnf, "root ::= \"a\" root"), "no text satisfies the constraint");
  for (const char* bad : {"", "root ::= (", "root ::= \"a", "root ::= [a", "root ::= \"a\"{}", "root ::= \"\\q\"",
                          "root ::= =", "root ::= \"a\"\nroot ::= \"b\""}) {
    EXPECT_NE(refusal(Kind::Ebnf, bad), "") << bad;
  }
}

TEST(Choice, IsOneOfTheTexts) {
  const auto grammar = compiled(Kind::Choice, "", {"yes", "yesterday", "nö"});
  for (const char* text : {"yes", "yesterday", "nö"}) EXPECT_TRUE(grammar->matches(text));
  for (const char* text : {"", "ye", "yesno", "no"}) EXPECT_FALSE(grammar->matches(text));
}

TEST(JsonObject, IsJsonWithBoundedSpace) {
  const auto grammar = compiled(Kind::JsonObject, "");
  for (const char* text :
       {"{}", R"({"a":1})", "{\n  \"a\": [1, -2.5e-3, true, null, {\"b\": \"\\u00e9\\n\\ud83d\\ude00ü\"}]\n}"}) {
    EXPECT_TRUE(grammar->matches(text)) << text;
  }
  for (const char* text : {"", "[]", "{} ", R"({"a":01})", R"({"a":1,})", "{\"a\":\"\n\"}", R"({"a":"\ud83d"})",
                           R"({"a":"\x"})", "{\n\n\n}", R"({'a':1})", R"({"a":1 ,"b":2})"}) {
    EXPECT_FALSE(grammar->matches(text)) << text;
  }
}

TEST(JsonSchema, TakesWhatItSays) {
  expect_language(Kind::JsonSchema,
                  R"({"type":"object","properties":{"name":{"type":"string","maxLength":3},"age":{"type":"integer",
                      "minimum":0,"maximum":120},"ok":{"type":["boolean","null"]}},"required":["name"],
                      "additionalProperties":false})",
                  {R"({"name":"Bob"})", R"({"name":"é\n😀","age":120})", R"({"name": "","age": 7,"ok": null})",
                   R"({"name":"\u0041bc","ok":true})"},
                  {"{}", R"({"name":"Bobb"})", R"({"name":"a","age":121})", R"({"name":"a","age":-1})",
                   R"({"age":1,"name":"a"})", R"({"name":"a","x":1})", R"({"name":"a","age":1.5})"});
  expect_language(Kind::JsonSchema,
                  R"({"type":"array","items":{"enum":["a",1,null,{"k":[]}]},"minItems":1,"maxItems":2})",
                  {R"(["a"])", R"([1, null])", R"([{"k":[]}])"}, {"[]", R"(["b"])", R"([1,1,1])"});
  expect_language(Kind::JsonSchema,
                  R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"boolean"}],"items":false})",
                  {"[]", "[1]", "[1, true]"}, {"[true]", "[1, true, 2]"});
  expect_language(Kind::JsonSchema, R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"boolean"}],
                      "items":{"type":"null"},"minItems":2})",
                  {"[1,true]", "[1,true,null,null]"}, {"[1]", "[1,null]"});
  expect_language(Kind::JsonSchema, R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":
                      {"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/n"})",
                  {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"}, {R"({"v":1})"});
  expect_language(Kind::JsonSchema, R"({"type":"string","pattern":"^[A-Z]{2}\"$"})", {R"("AB\"")"},
                  {R"("AB"")", R"("ABC")"});
  expect_language(Kind::JsonSchema, R"({"type":"string","pattern":"b+","minLength":3,"maxLength":4})",
                  {R"("abc")", R"("bbbb")", R"("\"b\\\n")"}, {R"("b")", R"("aaa")", R"("abbbb")"});
  expect_language(Kind::JsonSchema, R"({"type":"object","properties":{"a":{"type":"integer"},"ab":{}},
                      "additionalProperties":{"type":"string"}})",
                  {R"({"a":1,"x":"y"})", R"({"abc":"y","":"z","é":"w"})"},
                  {R"({"a":"y"})", R"({"x":1})", R"({"ab":1,"ab":"x"})"});
  expect_language(Kind::JsonSchema,
                  R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":3}},"required":["a"]},
                      {"properties":{"a":{"maximum":4}}}]})",
                  {R"({"a":3})", R"({"a":4})"}, {R"({"a":5})", R"({"a":2})", "{}"});
  expect_language(Kind::JsonSchema, R"({"type":"string","format":"date"})", {R"("2024-02-28")", R"("1999-12-31")"},
                  {R"("2024-02-30")", R"("2024-13-01")", R"("x")"});
  expect_language(Kind::JsonSchema, R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":1})",
                  {"{}", R"({"q":1})"}, {R"({"q":"1"})", R"({"q":1,"r":2})"});
  expect_language(Kind::JsonSchema, "true", {"1", "[]", "\"x\""}, {"", "x"});
}

TEST(JsonSchema, NumbersKeepTheirBounds) {
  expect_language(Kind::JsonSchema, R"({"type":"integer","minimum":-12,"exclusiveMaximum":105})",
                  {"-12", "-9", "-1", "0", "7", "99", "100", "104"}, {"-13", "105", "110", "1000", "-0", "00", "01"});
  expect_language(Kind::JsonSchema, R"({"type":"number","minimum":0.5,"maximum":12.25})",
                  {"0.5", "0.500001", "1", "9.99", "12.25", "12.249999", "10"},
                  {"0.4", "12.26", "13", "0", "-1", "0.499999"});
  expect_language(Kind::JsonSchema, R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1})",
                  {"0.1", "0.000001", "0.999999"}, {"0", "1", "0.0", "1.0", "-0.5"});
  expect_language(Kind::JsonSchema,
                  R"({"type":"integer","minimum":-9223372036854775808,"maximum":-9223372036854775000})",
                  {"-9223372036854775807"}, {"0", "-1"});
  expect_language(Kind::JsonSchema, R"({"type":"integer","minimum":1000000})", {"1000000", "123456789"},
                  {"999999", "-1000000"});
}

// Items and members are written more than once in the rules; what they hold must not be.
TEST(JsonSchema, DepthTakesItsStatesOnce) {
  const auto repeated = [](std::string_view text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  constexpr int kDepth = 40;
  const std::string arrays =
      repeated(R"({"type":"array","items":)", kDepth) + R"({"type":"integer"})" + repeated("}", kDepth);
  expect_language(Kind::JsonSchema, arrays, {repeated("[", kDepth) + "7" + repeated("]", kDepth), "[[], []]", "[]"},
                  {"7", "[7]", repeated("[", kDepth) + "[]" + repeated("]", kDepth)});
  const std::string objects =
      repeated(R"({"type":"object","properties":{"a":)", kDepth) + R"({"type":"integer"})" + repeated("}}", kDepth);
  expect_language(Kind::JsonSchema, objects,
                  {repeated(R"({"a":)", kDepth) + "7" + repeated("}", kDepth), R"({"a":{}})", "{}"},
                  {"7", R"({"a":7})", R"({"b":{}})"});
}

TEST(JsonSchema, RefusesWithThePath) {
  EXPECT_EQ(refusal(Kind::JsonSchema, R"({"type":"object","properties":{"a":{"not":{}}}})"),
            "properties.a.not: this keyword is not offered");
  EXPECT_EQ(refusal(Kind::JsonSchema, R"({"anyOf":[{"type":"array","items":{"type":"wibble"}}]})"),
            "anyOf[0].items.type: is no type of JSON");
  EXPECT_EQ(refusal(Kind::JsonSchema, R"({"$ref":"#/$defs/none"})"),
            "$ref: points to '#/$defs/none', which is not there");
  EXPECT_NE(refusal(Kind::JsonSchema, R"({"oneOf":[{"type":"integer"},{"type":"number"}]})").find("may hold at once"),
            std::string::npos);
  EXPECT_NE(refusal(Kind::JsonSchema, R"x({"type":"string","pattern":"(?=x)"})x").find("pattern: at character"),
            std::string::npos);
  for (const char* bad :
       {R"({"type":"integer","minimum":3,"maximum":2})", R"({"enum":[]})", "false", "3",
        R"({"type":"array","uniqueItems":true})", R"({"minLength":-1})", R"({"maxLength":"3"})",
        R"({"allOf":[{"$ref":"#"}]})", R"({"$ref":"http://x/y"})", R"({"multipleOf":3})",
        R"({"type":"object","properties":{"a":false},"required":["a"]})", R"({"allOf":[{"enum":3},{"enum":4}]})",
        R"({"allOf":[{"maximum":"a"},{"maximum":3}]})", R"({"allOf":[{"required":3},{"required":[1]}]})"}) {
    EXPECT_NE(refusal(Kind::JsonSchema, bad), "") << bad;
  }
}

}  // namespace
}  // namespace plumb::grammar
