// Masks against the slow truth: a token is allowed exactly when its bytes lead somewhere.
#include <gtest/gtest.h>

#include <random>

#include "grammar/compile.h"

namespace plumb::grammar {
namespace {

using Kind = ContentShape::Kind;

// Every byte, and random strings of the kind that byte pair merges give: words, punctuation runs, parts of characters.
std::shared_ptr<const Vocabulary> merged_vocabulary(size_t size, uint32_t seed) {
  static const char* const kParts[] = {"a", "e",   "th", " ",   " the", "\"",       "\":",  "\",", "{\"",      "}",
                                       "]", "\\n", "\n", "  ",  "1",    "00",       "é",    "😀",   "\xf0\x9f", "\x98",
                                       "-", ".",   ",",  "nul", "true", "</think>", "name", "\\",  "_"};
  std::mt19937 random(seed);
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  std::vector<Vocabulary::Tag> tags;
  for (const char* name :
       {"</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}) {
    tags.push_back({name, static_cast<int32_t>(bytes.size())});
    bytes.emplace_back();
  }
  while (bytes.size() < size) {
    std::string token;
    for (size_t n = 1 + random() % 9; n > 0; --n) token += kParts[random() % std::size(kParts)];
    bytes.push_back(std::move(token));
  }
  bytes.resize(size + 13);  // padding rows of the model
  return std::make_shared<const Vocabulary>(std::move(bytes), std::move(tags));
}

bool allowed(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0;
}

// Walks at random; at each place every id is tried for real.
void check_walk(const std::shared_ptr<Grammar>& grammar, uint32_t seed, int steps) {
  const Vocabulary& vocabulary = grammar->vocabulary();
  std::mt19937 random(seed);
  std::vector<int32_t> path;
  for (int i = 0; i < steps; ++i) {
    Cursor cursor(grammar);
    for (const int32_t id : path) ASSERT_TRUE(cursor.accept(id));
    std::vector<uint32_t> mask(vocabulary.words() + 2, 0xffffffffu);
    const Cursor::Next next = cursor.next({}, mask);
    EXPECT_EQ(next.may_end, cursor.may_end());
    std::vector<int32_t> choices;
    std::vector<uint32_t> unused(vocabulary.words());
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      const int32_t ahead[] = {id};
      const bool leads = cursor.next(ahead, unused).reached;
      ASSERT_EQ(allowed(mask, id), leads) << "id " << id << " after " << path.size() << " tokens";
      if (leads) choices.push_back(id);
    }
    for (int32_t id = vocabulary.size(); id < static_cast<int32_t>(mask.size() * 32); ++id)
      ASSERT_FALSE(allowed(mask, id));
    EXPECT_EQ(next.possible, !choices.empty());
    if (choices.empty()) return;
    path.push_back(choices[random() % choices.size()]);
  }
}

std::shared_ptr<Grammar> made(OutputShape shape, std::shared_ptr<const Vocabulary> vocabulary, int64_t warm_us = 0) {
  Result<std::shared_ptr<Grammar>> grammar = compile(shape, std::move(vocabulary), warm_us);
  EXPECT_TRUE(grammar) << (grammar ? "" : grammar.error().to_string());
  return grammar ? *grammar : nullptr;
}

TEST(Mask, EqualsWhatTheTokensDo) {
  const auto vocabulary = merged_vocabulary(1500, 1);
  const std::pair<Kind, const char*> sources[] = {
      {Kind::JsonObject, ""},
      {Kind::JsonSchema,
       R"({"type":"object","properties":{"name":{"type":"string"},"the":{"type":"array","items":{"type":"string",
        "maxLength":9}},"n":{"type":"number"}},"required":["name","the"]})"},
      {Kind::JsonSchema, R"({"type":"string","pattern":"^[a-eé]{2,12}\"?$"})"},
      {Kind::Regex, "(the |a)*\\d{2}|[^\\n]{0,40}"},
      {Kind::Ebnf, "root ::= \"(\" (root | [^()]{1,30})* \")\""}};
  uint32_t seed = 1;
  for (const auto& [kind, source] : sources) {
    const auto grammar = made({.content = {.kind = kind, .source = source}}, vocabulary);
    ASSERT_NE(grammar, nullptr);
    for (int round = 0; round < 4; ++round) check_walk(grammar, seed++, 15);
  }
}

TEST(Mask, EqualsWhatTheTokensDoInReasoningAndCalls) {
  const auto vocabulary = merged_vocabulary(1200, 2);
  OutputShape shape{.reasoning = Reasoning::Open};
  shape.content = {.kind = Kind::Choice, .choices = {"the", "\n1"}};
  shape.tools = {
      {"name", R"({"type":"object","properties":{"a":{"type":"string"},"e":{"type":"integer"}},"required":["a"]})"}};
  const auto grammar = made(shape, vocabulary, 1000);
  ASSERT_NE(grammar, nullptr);
  for (uint32_t seed = 1; seed < 8; ++seed) check_walk(grammar, seed, 15);
}

std::vector<int32_t> spelled(const Vocabulary& vocabulary, std::string_view text) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t used = 0;
    for (const Vocabulary::Tag& tag : vocabulary.tags()) {
      if (!text.starts_with(tag.text)) continue;
      ids.push_back(tag.id);
      used = tag.text.size();
    }
    if (used == 0) ids.push_back(static_cast<unsigned char>(text[0])), used = 1;
    text.remove_prefix(used);
  }
  return ids;
}

bool takes(const std::shared_ptr<Grammar>& grammar, std::string_view text) {
  Cursor cursor(grammar);
  for (const int32_t id : spelled(grammar->vocabulary(), text))
    if (!cursor.accept(id)) return false;
  return cursor.may_end();
}

TEST(Shape, ReasoningEndsByTheTagOrItsSpelling) {
  const auto vocabulary = merged_vocabulary(300, 3);
  const auto grammar =
      made({.reasoning = Reasoning::Open, .content = {.kind = Kind::Regex, .source = "\\d+"}}, vocabulary);
  EXPECT_TRUE(takes(grammar, "let {me} <see</think>12"));
  EXPECT_TRUE(takes(grammar, "</think>12"));
  EXPECT_FALSE(takes(grammar, "</think>\n12")) << "the line break would be part of the constrained text";
  EXPECT_FALSE(takes(grammar, "</think>x"));
  EXPECT_FALSE(takes(grammar, "12"));
  Cursor cursor(grammar);
  for (const char c : std::string("a <</think>7")) ASSERT_TRUE(cursor.accept(static_cast<unsigned char>(c)));
  EXPECT_TRUE(cursor.may_end());
  EXPECT_FALSE(cursor.accept('x'));
  EXPECT_TRUE(cursor.may_end());  // a refusal changes nothing
}

TEST(Shape, CallsKeepToTheirSchemas) {
  const auto vocabulary = merged_vocabulary(300, 4);
  OutputShape shape{.calls_required = true};
  shape.tools = {{"f", R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
                          "unit":{"enum":["C","F"]},"o":{"anyOf":[{"type":"object","properties":{"x":{"type":"null"}}},{"type":"null"}]}},
                          "required":["city"]})"},
                 {"f_long", ""}};
  const auto call = [](const std::string& inner) { return "<tool_call>" + inner + "</tool_call>"; };
  const auto argument = [](const std::string& key, const std::string& value) {
    return "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
  };
  const auto grammar = made(shape, vocabulary);
  EXPECT_TRUE(takes(grammar, call("f" + argument("city", "Paris \"</x> é"))));
  EXPECT_TRUE(takes(grammar,
                    call("f_long") + call("f" + argument("city", "") + argument("days", "3") + argument("unit", "C"))));
  EXPECT_TRUE(takes(grammar, call("f" + argument("city", "x") + argument("o", "{\"x\": null}"))));
  EXPECT_FALSE(takes(grammar, ""));
  EXPECT_FALSE(takes(grammar, "text"));
  EXPECT_FALSE(takes(grammar, call("f")));
  EXPECT_FALSE(takes(grammar, call("g")));
  EXPECT_FALSE(takes(grammar, call("f" + argument("city", "x") + argument("days", "three"))));
  EXPECT_FALSE(takes(grammar, call("f" + argument("city", "x") + argument("unit", "K"))));
  EXPECT_FALSE(takes(grammar, call("f_long") + "x"));
  shape.one_call = true;
  EXPECT_FALSE(takes(made(shape, vocabulary), call("f_long") + call("f_long")));
  shape.calls_required = false;
  const auto either = made(shape, vocabulary);
  EXPECT_TRUE(takes(either, "text"));
  EXPECT_TRUE(takes(either, call("f_long")));
}

TEST(Grammar, ForgetsAndGoesOn) {
  // Each depth is a new place, so this outgrows what a grammar keeps; both texts go on where they stood.
  const auto grammar = made({.content = {.kind = Kind::Ebnf, .source = "root ::= \"(\" [^()]{0,3} root? \")\""}},
                            merged_vocabulary(300, 5));
  grammar->set_memory(5000);
  Cursor one(grammar), other(grammar);
  ASSERT_TRUE(other.accept('('));
  constexpr int kDeep = 2000;
  for (int i = 0; i < kDeep; ++i) ASSERT_TRUE(one.accept('('));
  for (int i = 0; i < kDeep; ++i) ASSERT_TRUE(one.accept(')')) << i;
  EXPECT_TRUE(one.may_end());
  EXPECT_FALSE(one.accept(')'));
  ASSERT_TRUE(other.accept('e'));
  ASSERT_TRUE(other.accept(')'));
  EXPECT_TRUE(other.may_end());
}

TEST(Grammar, AnAmbiguousPatternIsGivenUpInTime) {
  for (const char* pattern : {"(a?){3000}a", "((a?){300}(b?){300}){90}", "(a?){90000}"}) {
    const Result<std::shared_ptr<Grammar>> grammar =
        compile({.content = {.kind = Kind::Regex, .source = pattern}}, merged_vocabulary(5000, 7), 0);
    ASSERT_FALSE(grammar) << pattern;
    EXPECT_NE((grammar.error().what + grammar.error().why).find("too"), std::string::npos);
  }
}

TEST(Grammar, AnEmptyTextAloneIsRefused) {
  const Result<std::shared_ptr<Grammar>> grammar =
      compile({.content = {.kind = Kind::Choice, .choices = {""}}}, merged_vocabulary(300, 6), 0);
  ASSERT_FALSE(grammar);
}

}  // namespace
}  // namespace plumb::grammar
