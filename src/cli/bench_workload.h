// What `plumb bench serve` sends, and when.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench_serve.h"

namespace plumb {

struct BenchRequest {
  double at_s = 0;  // after the start; open loop only
  std::string path{}, body{};
};

// Warm-up requests first. Lines of a trace are objects: `timestamp` (milliseconds) for open loops, and either `prompt`,
// `messages`, or `input_length`; `output_length` or `max_tokens`.
Result<std::vector<BenchRequest>> make_workload(const BenchServeOptions& options, const std::string& model);

}  // namespace plumb
