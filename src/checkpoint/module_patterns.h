// Patterns of exclude and target lists against module names. Files of different producers mean different things by the
// same words, so each reading is narrow: `model.layers.1` never matches `model.layers.10`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"

namespace plumb {

// A pattern matches a module name (without ".weight") when it is
// - equal to it, or the name of a parent (`model.layers.4` covers what is below it), or a bare last component
// (`lm_head`);
// - a glob, `*` crossing dots (`model.layers.1.*`, `*mlp.gate`);
// - `re:` and a regular expression that matches from the start of the name (compressed-tensors).
// Names are also tried as part of their fused linear (q_a + kv_a, gate + up), and `model.language_model.` or
// `language_model.model.` in a pattern stands for `model.`.
class ModulePatterns {
 public:
  ModulePatterns() = default;
  static Result<ModulePatterns> compile(std::vector<std::string> patterns);

  bool matches(std::string_view module) const;
  const std::vector<std::string>& patterns() const { return patterns_; }
  bool empty() const { return patterns_.empty(); }

 private:
  bool matches_one(const std::string& name) const;
  std::vector<std::string> patterns_{};  // as the file has them
  std::unordered_set<std::string> plain_{};
  std::vector<std::string> globs_{};
  std::vector<std::shared_ptr<const void>> regexes_{};  // compiled
};

bool glob_matches(std::string_view pattern, std::string_view text);

}  // namespace plumb
