// One request's tokens, pages and state. Owned by the engine thread; INVARIANTS.md says who writes which field when.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "engine/adjustments.h"
#include "engine/engine_api.h"
#include "grammar/grammar.h"

namespace plumb {

inline constexpr int kMaxDraftTokens = 3;

struct Sequence {
  uint64_t arrival = 0;  // unique; smaller is older
  int64_t turn = 0;      // where fair queueing over clients has put it
  GenerateRequest request{};
  std::shared_ptr<TokenStream> stream{};
  StreamUsage usage{};
  Adjustments adjustments{};
  std::unique_ptr<grammar::Cursor> cursor{};  // where the text stands in the request's grammar, if it has one

  std::vector<int32_t> tokens{};  // prompt, then what was generated
  int prompt_tokens = 0;
  int computed = 0;                               // leading tokens whose keys are in the cache
  int prompt_logprobs_done = 0;                   // prompt positions whose successor has been scored
  std::array<int32_t, kMaxDraftTokens> drafts{};  // guesses at the tokens after the last known one
  int draft_count = 0;

  std::vector<int32_t> pages{};  // of positions 0 ..., a reference on each
  int tree_pages = 0;            // leading pages that are, or were when last looked at, in the prefix tree
  bool tree_closed = false;      // a predecessor has left the tree: no more pages are entered
  int32_t slot = -1;             // row of the step's page table; -1 while waiting
  int synced_pages = 0;          // leading pages already copied to that row
  int64_t blocked_at = -1;       // available pages when it last failed to be admitted

  TokenEvent ending{};  // finish != None: how it ends, once the step's last passes have run
  bool poisoned = false;
  bool admitted_before = false;  // usage.cached_tokens is the first admission's
  uint64_t woken_in = 0;         // round of the engine's loop in which its stream was put on the list to wake

  int known() const { return static_cast<int>(tokens.size()); }
  int generated() const { return known() - prompt_tokens; }
  int uncomputed() const { return known() - computed; }
  // One row brings the next token. The rest is prefill: a prompt, or what a preempted sequence has to compute again.
  bool decoding() const { return generated() > 0 && uncomputed() == 1; }
  bool scores_prompt() const { return request.prompt_logprobs >= 0 && prompt_logprobs_done < prompt_tokens - 1; }
};

// Who runs first: lower priority values, then the client's turn, then arrival.
inline bool runs_before(const Sequence& a, const Sequence& b) {
  return std::tuple(a.request.priority, a.turn, a.arrival) < std::tuple(b.request.priority, b.turn, b.arrival);
}

}  // namespace plumb
