// What the engine is started with, and what follows from it for buffers and admission.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/result.h"
#include "engine/engine_api.h"
#include "guard/guard.h"
#include "model/model.h"
#include "model/model_plan.h"

namespace plumb {

struct StepView;

struct EngineOptions {
  int max_running = 64;         // sequences in one step
  int max_batch_tokens = 1024;  // rows of one step
  int chunk_tokens = 512;       // prompt rows of one sequence in a step
  int max_context = 0;          // tokens of one sequence; 0: what the model and the cache allow
  int64_t page_limit = 0;       // pages of the cache that this engine uses; 0: all
  int queue_limit = 4096;       // requests that may wait beside the running ones
  bool prefix_cache = true;
  int draft_tokens = 0;           // speculation with the MTP layer: 0 (off) ... 3 tokens a round
  int vocab_size = 0;             // ids from here on are never drawn; 0: the model's vocab_size
  int rank_timeout_ms = 3'500;    // with several ranks: without an answer for so long, one is lost
  int64_t stuck_step_ms = 5'000;  // no step counts as stuck earlier, however short it should be
  GuardOptions guard{};
  // The list of INVARIANTS.md is checked after each step.
#ifdef NDEBUG
  bool check_invariants = false;
#else
  bool check_invariants = true;
#endif
  // Called by the engine thread between the forward pass and the sampler; may read what it is shown, no longer than it
  // runs.
  std::function<void(const StepView&)> observer{};
};

// Writes into the plan's wishes what these options need: rows, logit rows, sequences, context, the MTP layer.
void ask_plan_for(const EngineOptions& options, ModelPlanOptions& plan);
// Asked against what the model, the cache and the other options allow.
Status check_options(const EngineOptions& options, const Forward& forward);
int64_t usable_pages(const EngineOptions& options, const Forward& forward);
// Tokens of one sequence: the smallest of option, plan, model and cache.
int effective_context(const EngineOptions& options, const Forward& forward);
// A request the engine can't run, whatever else it has to do: "one too large for the cache is refused".
Status check_request(const GenerateRequest& request, const ModelConfig& config, int max_context);

// Rows of a step whose logits are wanted for prompt_logprobs, and all such rows together.
inline constexpr int kPromptLogitRows = 32;
inline int logit_rows(const EngineOptions& options) {
  return std::min(options.max_batch_tokens, options.max_running * (1 + options.draft_tokens) + kPromptLogitRows);
}

}  // namespace plumb
