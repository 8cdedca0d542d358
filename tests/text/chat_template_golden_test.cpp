// Goldens from transformers' apply_chat_template; the versions stand in the file.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/source_dir.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

TEST(ChatTemplateGolden, EveryChatRendersAsRecorded) {
  std::ifstream in(testing::source_dir() + "/tests/data/golden/tokenizer/chat.json");
  const Json golden = Json::parse(in, nullptr, false);
  ASSERT_EQ(golden["cases"].size(), 23u);
  const auto chat = ChatTemplate::load(PLUMB_TEXT_MODEL_DIR);
  ASSERT_TRUE(chat) << chat.error().to_string();
  const auto tokenizer = Tokenizer::load(PLUMB_TEXT_MODEL_DIR);
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  for (const Json& c : golden["cases"]) {
    Json kwargs = c["kwargs"];
    const Json tools = kwargs.contains("tools") ? kwargs["tools"] : Json();
    kwargs.erase("tools");
    const auto rendered = chat->render(c["messages"], tools, kwargs);
    ASSERT_TRUE(rendered) << rendered.error().to_string();
    EXPECT_EQ(rendered->text, c["text"].get<std::string>());
    const auto ids = tokenizer->encode(rendered->text);
    ASSERT_TRUE(ids) << ids.error().to_string();
    EXPECT_EQ(*ids, c["ids"].get<std::vector<int32_t>>());
  }
}

}  // namespace
}  // namespace plumb
