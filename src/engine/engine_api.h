// The engine seen from outside: post a request, read tokens from its stream, cancel. The HTTP side and the engine share
// these two queues and nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/sampling.h"
#include "guard/guard_stats.h"
#include "guard/incident.h"

namespace plumb {

namespace grammar {
class Grammar;
}

enum class FinishReason : uint8_t { None, Stop, Length, Abort, Error };

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0f;  // of the model's distribution before temperature, penalties and masks; floor -9999
};

// One generated token, or the end of a choice. Exactly one event of a stream has `finish != None`, and it is the last.
struct TokenEvent {
  int32_t id = -1;                  // -1: no token in this event
  TokenLogprob logprob{};           // valid when SamplingParams::logprobs >= 0
  std::vector<TokenLogprob> top{};  // best first
  FinishReason finish = FinishReason::None;
  int32_t stop_id = -1;                        // the stop token that ended it; not sent as `id`, but with its logprob
  std::optional<Error> error{};                // FinishReason::Error
  std::shared_ptr<const Incident> incident{};  // numerical faults
};

// Per prompt position (from the second on), when asked for.
struct PromptLogprob {
  TokenLogprob token{};
  std::vector<TokenLogprob> top{};
};

struct StreamUsage {
  int prompt_tokens = 0;
  int cached_tokens = 0;  // taken from the prefix cache
  int completion_tokens = 0;
  int accepted_draft_tokens = 0;
  int rejected_draft_tokens = 0;
};

struct GenerateRequest {
  std::string request_id{};
  std::vector<int32_t> prompt_ids{};
  SamplingParams sampling{};
  int max_tokens = 0;                           // > 0; prompt + max_tokens fits the window (checked by the caller)
  int min_tokens = 0;                           // stop ids are masked before that many tokens
  std::vector<int32_t> stop_ids{};              // end the text; already holds the model's eos ids unless ignore_eos
  int prompt_logprobs = -1;                     // as SamplingParams::logprobs, for the prompt
  std::shared_ptr<grammar::Grammar> grammar{};  // what the text must be; null: anything
  std::string cache_salt{};                     // prefixes are shared inside one salt only
  std::string client{};                         // those of one client share a turn with others' ("" is one too)
  int priority = 0;                             // lower runs first
  int64_t deadline_us = 0;                      // steady-clock microseconds; 0: none
};

// Engine -> one request. Single producer (the engine thread), single consumer. The bound is the request's own
// max_tokens, so a slow reader costs only memory that was admitted.
class TokenStream {
 public:
  // Called by the engine thread after a batch of pushes, at most once per step; must be cheap and never block
  // (the server posts to its I/O context). Set before submit.
  std::function<void()> on_ready{};

  void push(TokenEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  // Moves everything that has arrived to `out` (cleared first). True once the final event has been taken.
  bool take(std::vector<TokenEvent>& out) {
    out.clear();
    const std::lock_guard lock(mutex_);
    out.swap(events_);
    if (!out.empty() && out.back().finish != FinishReason::None) finished_ = true;
    return finished_;
  }
  // The consumer is gone or has seen enough: the engine drops the request at its next step.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Written by the engine before the final event, read after it.
  StreamUsage usage{};
  std::vector<PromptLogprob> prompt_logprobs{};

 private:
  std::mutex mutex_{};
  std::vector<TokenEvent> events_{};
  std::atomic<bool> cancelled_{false};
  bool finished_ = false;
};

// Snapshot for /metrics and /health.
struct EngineStats {
  int running = 0, waiting = 0;
  int64_t pages_total = 0, pages_free = 0, pages_cached = 0;
  uint64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, cached_tokens = 0, preemptions = 0, aborts = 0,
           numerical_faults = 0, drafts_proposed = 0, drafts_accepted = 0;
  double step_seconds = 0, op_seconds = 0;  // sums
  GuardStats guard{};
};

class EngineApi {
 public:
  virtual ~EngineApi() = default;
  // Posts the request; an Error (Code::Environment) when the inbox is full or the engine drains: answer 429 / 503.
  virtual Status submit(GenerateRequest request, std::shared_ptr<TokenStream> stream) = 0;
  virtual EngineStats stats() const = 0;
  virtual int max_context() const = 0;  // prompt + generated tokens of one sequence
  virtual bool alive() const = 0;       // the engine thread made progress or is idle
  // No new requests; returns when running ones have ended or the deadline has passed (then they are aborted).
  virtual void drain(int64_t timeout_ms) = 0;
};

}  // namespace plumb
