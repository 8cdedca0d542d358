// Ready means verified (docs/trust.md): the checks that a start runs on the very plan, weights, buffers and pages it
// will serve with. Each sends real requests through an engine of its own and looks at logits, at tokens, or at every
// op.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_options.h"
#include "guard/golden.h"
#include "guard/receipt.h"

namespace plumb {

// A prompt whose answer the operator knows.
struct TextCase {
  std::string name{};  // "verify.jsonl line 3"
  std::vector<int32_t> prompt_ids{};
  std::vector<int32_t> stop_ids{};
  int max_tokens = 0;
  std::string expected{};  // must occur in the answer
  std::function<std::string(std::span<const int32_t> ids)> to_text{};
};

struct SelfCheckInput {
  const Forward& forward;
  EngineOptions options{};  // as the server's
  const Registry& registry;
  ThreadPool* pool = nullptr;
  bool full = false;
  bool first_only = false;         // the first failed check ends them
  int64_t checked_tensors = 0;     // by the loader
  const Golden* golden = nullptr;  // of the file beside the model, if there is one
  std::string golden_problem{};    // why the file can't be used; fails the check
  std::vector<TextCase> texts{};
  std::function<void(const std::string& check, size_t number, size_t of)> progress{};
};

// Never fails to give a receipt; what could not run at all is a failed check. Leaves pages and buffers as after
// loading.
std::vector<Check> run_self_checks(const SelfCheckInput& input);

}  // namespace plumb
