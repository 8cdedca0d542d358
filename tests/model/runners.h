// Models that several tests of this binary share.
#pragma once

#include <string>
#include <vector>

#include "golden_files.h"
#include "model/runner.h"

namespace plumb::testing {

const Registry& test_registry();

// The runner of one checkpoint folder and options, opened once; reset before it is handed out.
struct RunnerKey {
  std::string folder{};
  std::string backend = "reference";
  std::string kv = "auto";
  std::string index_keys = "auto";
  std::string profile = "transformers";
  std::string activations = "auto";
  int max_rows = 512;
  int sequences = 1;
  int context = 2176;
  auto operator<=>(const RunnerKey&) const = default;
};
ModelRunner* shared_runner(const RunnerKey& key);  // null, with a test failure, when it cannot be opened

// One golden prompt on one runner: prefill, then greedy decoding one token at a time. Computed once.
struct GreedyRun {
  std::vector<float> last8{};          // logits at the last 8 prompt positions
  std::vector<int32_t> ids{};          // greedy tokens
  std::vector<float> greedy_logits{};  // [ids, vocab]: the logits that chose them
};
const GreedyRun& greedy_run(const RunnerKey& key, const GoldenPrompt& prompt, size_t tokens);

}  // namespace plumb::testing
