// The receipt of a start: every check with its figure, bound and verdict. Shown at GET /verification and kept as a
// file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace plumb {

// The worst op of a check that looks at ops.
struct CheckedOp {
  int layer = -1;
  std::string site{}, op{}, kernel{};
  std::string deviation{};             // the worst element outside, in words
  std::vector<std::string> passing{};  // kernels that stay within their bounds on the same inputs
};

struct Check {
  enum class Verdict : uint8_t { Passed, Failed, Skipped };
  std::string name{};  // as in docs/trust.md
  Verdict verdict = Verdict::Passed;
  double figure = 0, bound = 0;
  std::string unit{};    // what the figure counts: "error / bound", "max |logit difference|"
  std::string sample{};  // what was looked at, or why nothing was
  std::vector<std::string> problems{};
  CheckedOp worst{};  // no site: the check compares no ops
  double seconds = 0;
};

struct Receipt {
  std::string level = "quick";  // quick | full
  std::string fingerprint{};    // of checkpoint, plan and build
  std::string plan{};
  std::vector<Check> checks{};
  double seconds = 0;

  bool passed() const;
  nlohmann::ordered_json to_json() const;
  // Names check, layer, op, kernel, figure, bound, and the kernels that pass. Only when a check failed.
  Error to_error() const;
};

// Replaces the file whole, or leaves it as it was.
Status write_receipt(const Receipt& receipt, const std::string& path);

}  // namespace plumb
