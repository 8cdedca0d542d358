// Golden files as vectors, and comparisons whose messages name the worst element.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/tap_recorder.h"

namespace plumb::testing {

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path);
  bool has(const std::string& name) const { return file_->find(name) != nullptr; }
  std::vector<int64_t> shape(const std::string& name) const;
  std::vector<float> floats(const std::string& name) const;
  std::vector<int32_t> ints(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  const TensorInfo& info(const std::string& name) const;
  std::unique_ptr<SafetensorsFile> file_{};
};

struct GoldenRun {
  std::vector<int32_t> greedy_ids{};
  float min_top2_margin = 0;
};
struct GoldenPrompt {
  std::string name{};
  std::vector<int32_t> ids{};
  std::map<std::string, GoldenRun> runs{};
};
// tests/data/golden/tiny-glm-dsa/prompts.json
const std::vector<GoldenPrompt>& golden_prompts();
const GoldenPrompt& golden_prompt(const std::string& name);

// Sanitizers make the reference twenty times slower; such builds leave out what is only long, never what is different.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSlowBuild = true;
#else
inline constexpr bool kSlowBuild = false;
#endif
inline bool too_long(const GoldenPrompt& prompt) { return kSlowBuild && prompt.ids.size() > 100; }

float max_abs(std::span<const float> values);
// Every |got - want| <= bound; NaN fails.
::testing::AssertionResult within(std::span<const float> got, std::span<const float> want, float bound);
// Rows of position sets: `got` ascending and -1 filled, `want` in any order, filled up with future positions.
::testing::AssertionResult same_sets(const TapRecorder::Entry& got, const std::vector<int32_t>& want, int64_t columns);

}  // namespace plumb::testing
