#include "golden_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "support/paths.h"

namespace plumb::testing {

GoldenFile::GoldenFile(const std::string& path) {
  auto file = SafetensorsFile::open(path);
  EXPECT_TRUE(file) << file.error().to_string();
  file_ = std::make_unique<SafetensorsFile>(*std::move(file));
}

const TensorInfo& GoldenFile::info(const std::string& name) const {
  const TensorInfo* found = file_->find(name);
  EXPECT_NE(found, nullptr) << file_->path() << " has no " << name;
  return *found;
}

std::vector<int64_t> GoldenFile::shape(const std::string& name) const { return info(name).shape; }

std::vector<float> GoldenFile::floats(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  EXPECT_EQ(tensor.dtype, DType::F32) << name;
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  std::memcpy(values.data(), file_->data(tensor), tensor.bytes());
  return values;
}

std::vector<int32_t> GoldenFile::ints(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  EXPECT_EQ(tensor.dtype, DType::I32) << name;
  std::vector<int32_t> values(static_cast<size_t>(tensor.elements()));
  std::memcpy(values.data(), file_->data(tensor), tensor.bytes());
  return values;
}

std::vector<std::string> GoldenFile::names() const {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : file_->tensors()) names.push_back(tensor.name);
  return names;
}

const std::vector<GoldenPrompt>& golden_prompts() {
  static const std::vector<GoldenPrompt> prompts = [] {
    std::ifstream file(golden_path("tiny-glm-dsa/prompts.json"));
    const auto json = nlohmann::json::parse(file);
    std::vector<GoldenPrompt> out;
    for (const auto& entry : json) {
      GoldenPrompt prompt{.name = entry.at("name"), .ids = entry.at("ids").get<std::vector<int32_t>>()};
      for (const auto& [run, output] : entry.at("outputs").items()) {
        if (!output.contains("greedy_ids")) continue;
        prompt.runs[run] = {.greedy_ids = output.at("greedy_ids").get<std::vector<int32_t>>(),
                            .min_top2_margin = output.at("min_top2_margin").get<float>()};
      }
      out.push_back(std::move(prompt));
    }
    return out;
  }();
  return prompts;
}

const GoldenPrompt& golden_prompt(const std::string& name) {
  for (const GoldenPrompt& prompt : golden_prompts())
    if (prompt.name == name) return prompt;
  ADD_FAILURE() << "no golden prompt " << name;
  return golden_prompts().front();
}

float max_abs(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

::testing::AssertionResult within(std::span<const float> got, std::span<const float> want, float bound) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << got.size() << " values instead of " << want.size();
  size_t worst = 0;
  float largest = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    const float diff = std::fabs(got[i] - want[i]);
    if (!(diff <= largest)) {
      largest = diff;
      worst = i;
    }
    if (std::isnan(diff)) break;
  }
  if (largest <= bound) return ::testing::AssertionSuccess() << "largest error " << largest;
  return ::testing::AssertionFailure() << "element " << worst << " is " << got[worst] << " instead of " << want[worst]
                                       << ": off by " << largest << ", allowed " << bound;
}

::testing::AssertionResult same_sets(const TapRecorder::Entry& got, const std::vector<int32_t>& want, int64_t columns) {
  if (static_cast<int64_t>(want.size()) != got.rows * columns)
    return ::testing::AssertionFailure() << got.rows << " rows for " << want.size() << " golden positions";
  for (int64_t row = 0; row < got.rows; ++row) {
    std::set<int32_t> ours;
    std::set<int32_t> theirs;
    for (int64_t i = 0; i < got.columns; ++i)
      if (const int32_t j = got.ints[static_cast<size_t>(row * got.columns + i)]; j >= 0) ours.insert(j);
    for (int64_t i = 0; i < columns; ++i)
      if (const int32_t j = want[static_cast<size_t>(row * columns + i)]; j <= row) theirs.insert(j);
    if (ours != theirs) return ::testing::AssertionFailure() << "row " << row << " selects other positions";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace plumb::testing
