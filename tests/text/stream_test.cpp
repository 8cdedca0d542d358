// Detokeniser and stop matcher: what a stream shows, and when.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/unicode.h"

namespace plumb {
namespace {

Tokenizer byte_tokenizer() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[bytes_to_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  nlohmann::json file;
  file["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}};
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  file["decoder"] = {{"type", "ByteLevel"}};
  file["added_tokens"] = {{{"id", 256}, {"content", "<end>"}, {"special", true}}};
  auto parsed = Tokenizer::parse(file.dump(), "");
  EXPECT_TRUE(parsed) << parsed.error().to_string();
  return *std::move(parsed);
}

TEST(Detokenizer, HoldsAnEmojiBackUntilItsLastByte) {
  const Tokenizer tokenizer = byte_tokenizer();
  Detokenizer stream(tokenizer);
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.pending().size(), 3u);
  EXPECT_EQ(stream.push(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Detokenizer, ACutCharacterEndsAsOneReplacement) {
  const Tokenizer tokenizer = byte_tokenizer();
  Detokenizer stream(tokenizer);
  stream.push(0xF0);
  stream.push(0x9F);
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Detokenizer, SkipsSpecialTokensOnlyWhenAsked) {
  const Tokenizer tokenizer = byte_tokenizer();
  EXPECT_EQ(Detokenizer(tokenizer, true).push(256), "");
  EXPECT_EQ(Detokenizer(tokenizer, false).push(256), "<end>");
}

TEST(Detokenizer, AnyBytesGiveValidPiecesThatJoinToTheWhole) {
  const Tokenizer tokenizer = byte_tokenizer();
  std::mt19937 random(7);
  const int bytes[] = {'a',  0x80, 0xBF, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xED,
                       0xA0, 0xF0, 0x9F, 0x98, 0xF4, 0x90, 0xFF, 256};
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids;
    for (size_t i = random() % 12 + 1; i > 0; --i) ids.push_back(bytes[random() % std::size(bytes)]);
    Detokenizer stream(tokenizer, false);
    std::string joined;
    for (const int32_t id : ids) {
      const std::string piece = stream.push(id);
      EXPECT_TRUE(utf8::valid(piece));
      joined += piece;
    }
    joined += stream.flush();
    EXPECT_EQ(joined, tokenizer.decode(ids, false));
  }
}

// What is right by definition: the earliest match, of these the longest.
struct Expected {
  std::string shown{};
  bool stopped = false;
};
Expected whole(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t at = 0; at < text.size(); ++at) {
    size_t longest = 0;
    for (const std::string& stop : stops)
      if (!stop.empty() && text.compare(at, stop.size(), stop) == 0) longest = std::max(longest, stop.size());
    if (longest > 0) return {text.substr(0, at + (include ? longest : 0)), true};
  }
  return {text, false};
}

TEST(StopMatcher, EverySplitOfEveryTextAgreesWithSearchingTheWhole) {
  std::mt19937 random(3);
  for (int round = 0; round < 5000; ++round) {
    const auto word = [&](size_t longest) {
      std::string out;
      for (size_t i = random() % longest + 1; i > 0; --i)
        out += random() % 5 == 0 ? "\u00e9" : std::string(1, "ab"[random() % 2]);
      return out;
    };
    const std::string text = word(14);
    std::vector<std::string> stops;
    for (size_t i = random() % 4; i > 0; --i) stops.push_back(word(4));
    const bool include = random() % 2 == 0;
    StopMatcher matcher(stops, include);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(random() % 4 + 1, text.size() - at);
      shown += matcher.push(text.substr(at, size));
      at += size;
    }
    shown += matcher.flush();
    const Expected want = whole(text, stops, include);
    EXPECT_EQ(shown, want.shown) << text;
    EXPECT_EQ(matcher.match().has_value(), want.stopped) << text;
  }
}

TEST(StopMatcher, NothingOfAStopLeaksAndFalseStartsAreReleased) {
  StopMatcher matcher({"</end>"});
  EXPECT_EQ(matcher.push("text </"), "text ");
  EXPECT_EQ(matcher.push("en"), "");
  EXPECT_EQ(matcher.push("emy> more </"), "</enemy> more ");
  EXPECT_EQ(matcher.push("end> after"), "");
  ASSERT_TRUE(matcher.match());
  EXPECT_EQ(matcher.match()->begin, 19u);
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, TheEndReleasesWhatWasHeld) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("no sto"), "no ");
  EXPECT_EQ(matcher.flush(), "sto");
  EXPECT_FALSE(matcher.match());
}

TEST(StopMatcher, OnEqualBeginningTheLongestWinsEvenAtTheEnd) {
  StopMatcher longer({"ab", "abc"});
  EXPECT_EQ(longer.push("xab"), "x");
  EXPECT_EQ(longer.push("c"), "");
  EXPECT_EQ(longer.match()->stop_index, 1u);
  StopMatcher shorter({"ab", "abc"});
  shorter.push("xab");
  EXPECT_EQ(shorter.flush(), "");
  EXPECT_EQ(shorter.match()->stop_index, 0u);
}

}  // namespace
}  // namespace plumb
