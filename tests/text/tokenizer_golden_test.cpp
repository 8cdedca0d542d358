// The goldens were written by Hugging Face's tokenizers; their versions stand in the files.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/source_dir.h"
#include "text/tokenizer.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

Json read_json(const std::string& path) {
  std::ifstream in(testing::source_dir() + "/" + path);
  return Json::parse(in, nullptr, false);
}

class TokenizerGolden : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = Tokenizer::load(PLUMB_TEXT_MODEL_DIR);
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    tokenizer = new Tokenizer(std::move(*loaded));
  }
  static void TearDownTestSuite() {
    delete tokenizer;
    tokenizer = nullptr;
  }
  static Tokenizer* tokenizer;
};
Tokenizer* TokenizerGolden::tokenizer = nullptr;

TEST_F(TokenizerGolden, EveryStringEncodesAndDecodesAsRecorded) {
  const Json golden = read_json("tests/data/golden/tokenizer/encode.json");
  ASSERT_EQ(golden["cases"].size(), 300u);
  for (const Json& c : golden["cases"]) {
    const auto text = c["text"].get<std::string>();
    const auto want = c["ids"].get<std::vector<int32_t>>();
    const auto ids = tokenizer->encode(text);
    ASSERT_TRUE(ids) << ids.error().to_string();
    EXPECT_EQ(*ids, want) << text;
    EXPECT_EQ(tokenizer->decode(want, false), c["decoded"]) << text;
    EXPECT_EQ(tokenizer->decode(want, true), c["decoded_skip_special"]) << text;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(tokenizer->token_text(want[i]), c["tokens"][i]);
  }
}

TEST_F(TokenizerGolden, EveryRenderedChatEncodesAsRecorded) {
  const Json golden = read_json("tests/data/golden/tokenizer/chat.json");
  ASSERT_EQ(golden["cases"].size(), 23u);
  for (const Json& c : golden["cases"]) {
    const auto ids = tokenizer->encode(c["text"].get<std::string>());
    ASSERT_TRUE(ids) << ids.error().to_string();
    EXPECT_EQ(*ids, c["ids"].get<std::vector<int32_t>>()) << c["text"];
  }
}

}  // namespace
}  // namespace plumb
