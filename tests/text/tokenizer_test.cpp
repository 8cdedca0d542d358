#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/byte_alphabet.h"

namespace plumb {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

// 256 bytes as ids 0 to 255, "aa" 256, "aaaa" 257, then added tokens.
Json small_file() {
  Json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[bytes_to_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  vocab["aa"] = 256;
  vocab["aaaa"] = 257;
  Json file;
  file["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a a", "aa aa"}}};
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  file["decoder"] = {{"type", "ByteLevel"}};
  file["added_tokens"] = {{{"id", 258}, {"content", "<|user|>"}, {"special", true}},
                          {{"id", 259}, {"content", "<think>"}, {"special", false}},
                          {{"id", 260}, {"content", "</arg_value>"}, {"special", false}},
                          {{"id", 261}, {"content", "/nothink"}, {"special", false}}};
  return file;
}

Tokenizer small_tokenizer() {
  auto parsed = Tokenizer::parse(small_file().dump(), R"({"eos_token": {"content": "<|user|>"}, "bos_token": null})");
  EXPECT_TRUE(parsed) << parsed.error().to_string();
  return *std::move(parsed);
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
  auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids) << ids.error().to_string();
  return *ids;
}

std::string refusal(const Json& file) {
  const auto parsed = Tokenizer::parse(file.dump(), "");
  return parsed ? "accepted" : parsed.error().to_string();
}

TEST(Tokenizer, RefusesByNameWhatItDoesNotImplement) {
  const auto with = [](const char* pointer, const Json& value) {
    Json file = small_file();
    file[Json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  EXPECT_THAT(with("/model/type", "WordPiece"), HasSubstr("WordPiece"));
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("byte_fallback"));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(with("/model/unk_token", "<unk>"), HasSubstr("unk_token"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("Lowercase"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}}), HasSubstr("Metaspace"));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("WordPiece"));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("BertProcessing"));
  EXPECT_THAT(with("/truncation", {{"max_length", 5}}), HasSubstr("truncation"));
  EXPECT_EQ(with("/normalizer", nullptr), "accepted");
}

TEST(Tokenizer, RefusesPatternsThatTheTwoDialectsReadDifferently) {
  const auto with = [](const char* regex) {
    Json file = small_file();
    file["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}}, file["pre_tokenizer"]}}};
    return refusal(file);
  };
  EXPECT_THAT(with("a{,3}"), HasSubstr("'{'"));
  EXPECT_THAT(with("[a-z&&[^b]]"), HasSubstr("intersection"));
  EXPECT_THAT(with("[a[bc]]"), HasSubstr("class within a class"));
  EXPECT_THAT(with("\\w+"), HasSubstr("'\\w'"));
  EXPECT_THAT(with("^a"), HasSubstr("anchor"));
  EXPECT_THAT(with("\\p{Greek}"), HasSubstr("Greek"));
  EXPECT_THAT(with("(?<n>a)"), HasSubstr("group"));
  EXPECT_THAT(with("(a"), HasSubstr("does not compile"));
  EXPECT_EQ(with("\\p{L}+|[^\\s]++|\\s+(?!\\S)"), "accepted");
}

TEST(Tokenizer, RefusesFilesThatContradictThemselves) {
  EXPECT_THAT(refusal(Json::array()), HasSubstr("not a JSON object"));
  EXPECT_FALSE(Tokenizer::parse("{", ""));
  Json file = small_file();
  file["model"]["merges"].push_back("zz y");
  EXPECT_THAT(refusal(file), HasSubstr("zz"));
  file = small_file();
  file["model"]["vocab"]["again"] = 7;
  EXPECT_THAT(refusal(file), HasSubstr("id 7"));
  file = small_file();
  file["model"]["vocab"]["a"] = -1;
  EXPECT_THAT(refusal(file), HasSubstr("-1"));
  file = small_file();
  file["model"]["vocab"]["far"] = 4'000'000'000;
  EXPECT_THAT(refusal(file), HasSubstr("4000000000"));
  file = small_file();
  file["model"]["vocab"].erase("a");
  file["model"]["merges"] = Json::array();
  EXPECT_THAT(refusal(file), HasSubstr("byte 97"));
  file = small_file();
  file["added_tokens"].push_back({{"id", 5}, {"content", "<x>"}});
  EXPECT_THAT(refusal(file), HasSubstr("<x>"));
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 262);
  EXPECT_EQ(tokenizer.token_id("aaaa"), 257);
  EXPECT_EQ(tokenizer.token_id("<think>"), 259);
  EXPECT_EQ(tokenizer.token_id("nope"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(258) && tokenizer.is_added(258));
  EXPECT_TRUE(!tokenizer.is_special(259) && tokenizer.is_added(259));
  EXPECT_FALSE(tokenizer.is_added(97) || tokenizer.knows(262) || tokenizer.knows(-1));
  EXPECT_EQ(tokenizer.token_bytes(' '), " ");
  EXPECT_EQ(tokenizer.token_text(' '), "Ġ");
  EXPECT_EQ(tokenizer.token_bytes(-5), "");
  EXPECT_EQ(tokenizer.eos_id(), 258);
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
}

TEST(Tokenizer, UntrustedTextMakesNoControlTokenButOthersStillMatch) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::string text = "<|user|><think><|user|></arg_value>/nothink";
  const Span tail[] = {{15, text.size()}};
  const auto ids = encode(tokenizer, text, {.untrusted = tail});
  EXPECT_THAT(ids, ::testing::ElementsAreArray([&] {
                std::vector<int32_t> want{258, 259};
                for (const char c : std::string("<|user|></arg_value>")) want.push_back(c);
                want.push_back(261);
                return want;
              }()));
  EXPECT_EQ(tokenizer.decode(ids, false), text);
}

TEST(Tokenizer, OneUntrustedByteWithinATagIsEnough) {
  const Tokenizer tokenizer = small_tokenizer();
  for (size_t i = 0; i < 7; ++i) {
    const Span one[] = {{i, i + 1}};
    EXPECT_EQ(encode(tokenizer, "<think>", {.untrusted = one}).size(), 7u) << i;
  }
  const Span beside[] = {{0, 1}, {8, 9}};
  EXPECT_EQ(encode(tokenizer, "a<think>a", {.untrusted = beside}), (std::vector<int32_t>{97, 259, 97}));
}

TEST(Tokenizer, MatchingOffReadsEverythingAsText) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(encode(tokenizer, "<think>", {.match_added_tokens = false}).size(), 7u);
}

TEST(Tokenizer, InvalidBytesBecomeReplacementCharactersAndSpansFollow) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(encode(tokenizer, "\xff"), encode(tokenizer, "\uFFFD"));
  EXPECT_EQ(encode(tokenizer, "a\xf0\x9f"), encode(tokenizer, "a\uFFFD"));
  const Span tag[] = {{1, 8}};
  EXPECT_EQ(encode(tokenizer, "\xff<think>", {.untrusted = tag}).size(), 3u + 7u);
  const Span first[] = {{0, 1}};
  EXPECT_EQ(encode(tokenizer, "\xff<think>", {.untrusted = first}).size(), 3u + 1u);
}

TEST(Tokenizer, SpecialTokensAroundATextOnlyWhenAsked) {
  Json file = small_file();
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<|user|>"}}}}, {{"Sequence", {{"id", "A"}}}}}}};
  const auto tokenizer = Tokenizer::parse(file.dump(), "");
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  EXPECT_EQ(encode(*tokenizer, "a"), (std::vector<int32_t>{97}));
  EXPECT_EQ(encode(*tokenizer, "a", {.add_special_tokens = true}), (std::vector<int32_t>{258, 97}));
}

// A megabyte of one kind of character finishes within the match limits, and nothing is lost.
TEST(Tokenizer, MegabyteRunsOfOneKindPass) {
  auto tokenizer = Tokenizer::load(PLUMB_TEXT_MODEL_DIR);
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  for (const std::string unit : {"a", " ", "\n", "\r\n", "7", "!", "'", "\u4e2d", "\u0301", "'s", "\t ", " a", "<",
                                 "<|user|", "<think>", "\xff"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    const auto ids = tokenizer->encode(text);
    ASSERT_TRUE(ids) << unit << ids.error().to_string();
    if (unit != "\xff") {
      EXPECT_EQ(tokenizer->decode(*ids, false), text);
    }
    if (unit == "<think>") {
      EXPECT_EQ(ids->size(), text.size() / 7);
    }
  }
}

TEST(Tokenizer, AnExplodingPatternEndsInAnError) {
  Json file = small_file();
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(a|aa|aaa)+(a|aa)+(a|aa|aaa)+b"}}}, {"behavior", "Isolated"}},
        file["pre_tokenizer"]}}};
  const auto tokenizer = Tokenizer::parse(file.dump(), "");
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  const auto ids = tokenizer->encode(std::string(200, 'a') + "!b");
  ASSERT_FALSE(ids);
  EXPECT_THAT(ids.error().to_string(), HasSubstr("gave up"));
}

}  // namespace
}  // namespace plumb
