// Goldens of an independent float64 implementation (tools/golden) for mistakes that no other golden shows.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runners.h"
#include "support/paths.h"
#include "variant_files.h"

namespace plumb::testing {
namespace {

using Json = nlohmann::json;

const Json& recipes() {
  static const Json list = [] {
    std::ifstream file(golden_path("variants/recipes.json"));
    return Json::parse(file);
  }();
  return list;
}

std::vector<int32_t> ids_of(const Json& source) {
  if (source.contains("golden"))
    return GoldenFile(testing::source_dir() + "/" + source.at("golden").get<std::string>()).ints("input_ids");
  std::vector<int32_t> ids = golden_prompt(source.at("prompt")).ids;
  if (source.contains("first")) ids.resize(source.at("first").get<size_t>());
  return ids;
}

class Variant : public ::testing::TestWithParam<size_t> {};

TEST_P(Variant, FollowsTheIndependentImplementation) {
  const Json& recipe = recipes().at(GetParam());
  const std::string name = recipe.at("name");
  if (kSlowBuild && recipe.contains("greedy")) GTEST_SKIP() << "150 steps take too long in a sanitizer build";
  EditableCheckpoint checkpoint(testing::source_dir() + "/" + recipe.at("base").get<std::string>());
  checkpoint.apply(recipe);
  const TemporaryFolder folder;
  checkpoint.write(folder.path());
  auto runner = ModelRunner::open(folder.path(), test_registry(),
                                  {.plan = {.backend = "reference",
                                            .kv = recipe.value("kv", "auto"),
                                            .index_keys = recipe.value("index_keys", "auto"),
                                            .numeric_profile = recipe.value("profile", "transformers"),
                                            .mtp = "off",
                                            .max_rows = 256,
                                            .max_sequences = 1,
                                            .max_context = 256}});
  ASSERT_TRUE(runner) << runner.error().to_string();
  const GoldenFile golden(golden_path("variants/goldens.safetensors"));
  const std::vector<float> want = golden.floats(name + ".logits");
  const int64_t rows = golden.shape(name + ".logits")[0];
  std::vector<int32_t> ids = ids_of(recipe.at("ids"));
  if (recipe.contains("greedy")) {
    const std::vector<int32_t> greedy = golden.ints(name + ".greedy_ids");
    auto logits = (*runner)->feed(ids, 1);
    for (size_t i = 0; i < greedy.size(); ++i) {
      ASSERT_TRUE(logits) << logits.error().to_string();
      ASSERT_EQ(argmax(*logits), greedy[i]) << "greedy token " << i;
      logits = (*runner)->feed(std::span(greedy).subspan(i, 1), 1);
    }
    ids.insert(ids.end(), greedy.begin(), greedy.end() - 1);  // the last one has been chosen, not read
    (*runner)->reset();
  }
  const auto logits = (*runner)->feed(ids, rows);
  ASSERT_TRUE(logits) << logits.error().to_string();
  // Rounding to FP8 turns on the last bit of a value, so one may round the other way and is then off by its step.
  const float bound = recipe.value("bound", 1e-4f) * (recipe.contains("bound") ? 1 : max_abs(want));
  EXPECT_TRUE(within(*logits, want, bound)) << recipe.at("shows");
}

INSTANTIATE_TEST_SUITE_P(All, Variant, ::testing::Range(size_t{0}, recipes().size()), [](const auto& variant) {
  return recipes().at(variant.param).at("name").template get<std::string>();
});

}  // namespace
}  // namespace plumb::testing
