#include "engine/engine_options.h"

#include <algorithm>

#include "engine/sequence.h"
#include "model/buffers.h"

namespace plumb {

namespace {

Error refuse(std::string what, std::string why, std::vector<std::string> works) {
  return {Code::Unsupported, std::move(what), std::move(why), std::move(works)};
}

std::string number(int64_t value) { return std::to_string(value); }

}  // namespace

void ask_plan_for(const EngineOptions& options, ModelPlanOptions& plan) {
  plan.max_rows = options.max_batch_tokens;
  plan.max_logit_rows = logit_rows(options);
  plan.max_sequences = options.max_running;
  plan.max_context = options.max_context;
  plan.mtp = options.draft_tokens > 0 ? "on" : "off";
}

Status check_options(const EngineOptions& options, const Forward& forward) {
  if (options.max_running < 1 || options.chunk_tokens < 1 || options.queue_limit < 0) {
    return refuse("engine: max_running " + number(options.max_running) + ", chunk_tokens " +
                      number(options.chunk_tokens) + ", queue_limit " + number(options.queue_limit),
                  "the first two must be positive, the last must not be negative", {});
  }
  if (options.draft_tokens < 0 || options.draft_tokens > kMaxDraftTokens) {
    return refuse("engine: " + number(options.draft_tokens) + " draft tokens a round",
                  "speculation drafts 1 to " + number(kMaxDraftTokens) + " tokens; 0 turns it off",
                  {"0", "1", "2", "3"});
  }
  if (options.draft_tokens > 0 && !forward.weights.has_mtp) {
    return refuse("engine: " + number(options.draft_tokens) + " draft tokens a round",
                  "the next-token prediction (MTP) layer is not loaded", {"0"});
  }
  const int decode_rows = options.max_running * (1 + options.draft_tokens);
  if (options.max_batch_tokens <= decode_rows) {
    return refuse("engine: max_batch_tokens " + number(options.max_batch_tokens),
                  number(options.max_running) + " running sequences take up to " + number(decode_rows) +
                      " rows of a step, and prompts need at least one",
                  {"max_batch_tokens " + number(decode_rows + 1) + " or more", "fewer running sequences"});
  }
  if (forward.cache.pages() < 1) return refuse("engine: a KV cache of 0 pages", "a sequence needs at least one", {});
  const int most = effective_context(options, forward);
  if (options.max_context > most) {
    return refuse("engine: max_context " + number(options.max_context),
                  "model, plan and KV cache allow " + number(most) + " tokens", {number(most) + " or less"});
  }
  const ForwardLimits& limits = forward.buffers.limits;
  const int sequences = limits.sequences > 0 ? limits.sequences : limits.rows;
  if (limits.rows < options.max_batch_tokens || limits.logit_rows < logit_rows(options) ||
      sequences < options.max_running || (options.draft_tokens > 0 && !limits.mtp)) {
    return Error{Code::Internal,
                 "engine: its steps are larger than the plan's buffers",
                 number(limits.rows) + " rows, " + number(limits.logit_rows) + " of them with logits, " +
                     number(sequences) + " sequences were planned",
                 {}};
  }
  return {};
}

int64_t usable_pages(const EngineOptions& options, const Forward& forward) {
  return options.page_limit > 0 ? std::min(options.page_limit, forward.cache.pages()) : forward.cache.pages();
}

int effective_context(const EngineOptions& options, const Forward& forward) {
  const int64_t cache_tokens = usable_pages(options, forward) * forward.cache.geometry().page_tokens;
  int64_t most = std::min<int64_t>(forward.config.max_position_embeddings, cache_tokens);
  most = std::min<int64_t>(most, forward.buffers.limits.context);
  return static_cast<int>(options.max_context > 0 ? std::min<int64_t>(options.max_context, most) : most);
}

Status check_request(const GenerateRequest& request, const ModelConfig& config, int max_context) {
  if (request.prompt_ids.empty()) {
    return Error{Code::Usage, "a prompt of 0 tokens", "the model needs at least one to go on from", {}};
  }
  if (request.max_tokens < 1) {
    return Error{Code::Usage, "max_tokens " + number(request.max_tokens), "at least one token is generated", {"1"}};
  }
  const int64_t tokens = static_cast<int64_t>(request.prompt_ids.size()) + request.max_tokens;
  if (tokens > max_context) {
    return Error{Code::Usage,
                 "a prompt of " + number(static_cast<int64_t>(request.prompt_ids.size())) + " tokens and max_tokens " +
                     number(request.max_tokens),
                 "together " + number(tokens) + ", and the context is " + number(max_context) + " tokens",
                 {"a shorter prompt", "a smaller max_tokens"}};
  }
  for (const int32_t id : request.prompt_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return Error{Code::Usage,
                   "token id " + number(id) + " in the prompt",
                   "the model's ids are 0 to " + number(config.vocab_size - 1),
                   {}};
    }
  }
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    if (id < 0 || id >= config.vocab_size) {
      return Error{Code::Usage,
                   "token id " + number(id) + " in logit_bias",
                   "the model's ids are 0 to " + number(config.vocab_size - 1),
                   {}};
    }
  }
  return {};
}

}  // namespace plumb
