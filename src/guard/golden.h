// The golden file beside a model: prompts and the best logits at some of their positions, as the reference computes
// them, with how far each KV format's own rounding may move them. Made by `plumb golden make`, compared at every start.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace plumb {

inline constexpr const char* kGoldenFile = "plumb-golden.json";

struct GoldenPosition {
  int position = 0;            // of the prompt: the logits after its token
  std::vector<int32_t> ids{};  // best first
  std::vector<float> logits{};
};
struct GoldenPrompt {
  std::vector<int32_t> ids{};
  std::vector<GoldenPosition> positions{};  // ascending; the last is the prompt's last token
};
struct Golden {
  std::string checkpoint{};       // Checkpoint::identity_hash
  std::string numeric_profile{};  // the only one it can be compared with
  std::string made_by{};
  std::map<std::string, double> bounds{};  // by KV format: largest |difference| of these logits
  std::vector<GoldenPrompt> prompts{};
};

Status write_golden(const Golden& golden, const std::filesystem::path& path);
// Errors: NotFound when there is no such file; Corrupt with what is wrong.
Result<Golden> read_golden(const std::filesystem::path& path);

}  // namespace plumb
