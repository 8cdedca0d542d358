// Results recorded from Hugging Face's tokenizers and from Jinja2 by tools/text_diff/record.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/source_dir.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

Json read_json(const std::string& path) {
  std::ifstream in(path);
  return Json::parse(in, nullptr, false);
}
Json recorded(const std::string& name) { return read_json(testing::source_dir() + "/tests/data/text/" + name); }

Json changed_merges(const Json& merges, const std::string& how) {
  Json out = Json::array();
  for (size_t i = 0; i < merges.size(); ++i) {
    if (how == "as-text") out.push_back(merges[i][0].get<std::string>() + " " + merges[i][1].get<std::string>());
    if (how == "every-second" && i % 2 == 0) out.push_back(merges[i]);
    if (how == "first-200" && i < 200) out.push_back(merges[i]);
  }
  return out;
}

Json patched(Json file, const Json& patch) {
  for (const auto& [key, value] : patch.items()) {
    if (key == "merges") {
      file["model"]["merges"] = changed_merges(file["model"]["merges"], value.get<std::string>());
    } else if (key == "ignore_merges") {
      file["model"]["ignore_merges"] = value;
    } else if (key == "added_tokens") {
      for (const Json& token : value) file["added_tokens"].push_back(token);
    } else {
      file[key] = value;
    }
  }
  return file;
}

TEST(RecordedTokenizer, EveryVariantEncodesAsTheOriginal) {
  const Json file = read_json(std::string(PLUMB_TEXT_MODEL_DIR) + "/tokenizer.json");
  const Json record = recorded("tokenizer_cases.json");
  ASSERT_GE(record["variants"].size(), 15u);
  for (const Json& variant : record["variants"]) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    const auto tokenizer = Tokenizer::parse(patched(file, variant["patch"]).dump(), "");
    ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
    for (const Json& c : variant["cases"]) {
      const auto ids = tokenizer->encode(c["text"].get<std::string>());
      ASSERT_TRUE(ids) << ids.error().to_string();
      EXPECT_EQ(*ids, c["ids"].get<std::vector<int32_t>>()) << c["text"];
    }
  }
}

TEST(RecordedTokenizer, IdListsCutInsideCharactersDecodeAsTheOriginalAtOnceAndAsAStream) {
  const auto tokenizer = Tokenizer::load(PLUMB_TEXT_MODEL_DIR);
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  const Json record = recorded("tokenizer_cases.json");
  for (const Json& c : record["decode"]) {
    const auto ids = c["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer->decode(ids, false), c["text"]);
    EXPECT_EQ(tokenizer->decode(ids, true), c["skipped"]);
    Detokenizer stream(*tokenizer, false);
    std::string joined;
    for (const int32_t id : ids) joined += stream.push(id);
    EXPECT_EQ(joined + stream.flush(), c["text"].get<std::string>());
  }
}

TEST(RecordedTemplates, EverySnippetRendersOrFailsAsInJinja2) {
  const Json record = recorded("template_cases.json");
  ASSERT_GE(record["cases"].size(), 150u);
  for (const Json& c : record["cases"]) {
    const auto source = c["template"].get<std::string>();
    const auto chat = ChatTemplate::parse(source, "");
    if (!chat) {
      EXPECT_TRUE(c.contains("error")) << source << "\n" << chat.error().to_string();
      continue;
    }
    const auto rendered = chat->render(Json::array(), Json(), record["variables"]);
    EXPECT_EQ(!rendered, c.contains("error")) << source << (rendered ? "" : "\n" + rendered.error().to_string());
    if (rendered && c.contains("text")) {
      EXPECT_EQ(rendered->text, c["text"].get<std::string>()) << source;
    }
  }
}

}  // namespace
}  // namespace plumb
