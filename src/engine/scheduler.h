// What the next step computes. A pure function of the sequences, the pages and the limits: no clock, no I/O.
//
// Policy: decodes first, so running streams never stall. Prompts share the rest of the row budget in the queue's order:
// first each gets a small share, so that long ones leave room for short ones, then they divide what is left. Waiting
// sequences are admitted in order while a share is left for them, and the first that does not fit ends the pass: nobody
// is overtaken.
// Whoever is admitted gets the pages of all its known tokens at once, so a prompt never stops half-way for want of
// pages. A decode that finds no page preempts the newest sequence, perhaps itself; the oldest always gets on.
#pragma once

#include <vector>

#include "engine/prefix_tree.h"
#include "engine/sequence.h"

namespace plumb {

struct SchedulerLimits {
  int max_running = 1;
  int max_batch_tokens = 1;   // rows of a step
  int chunk_tokens = 1;       // prompt rows of one sequence in a step
  int prompt_logit_rows = 1;  // rows of a step whose logits are wanted for prompt_logprobs
  int page_tokens = 64;
  bool prefix_cache = true;
};

// Rows of one sequence in a step: its positions begin ... begin + count - 1.
struct BatchItem {
  Sequence* sequence = nullptr;
  int begin = 0;
  int count = 0;
  int first_logit = 0;  // rows first_logit ... count - 1 want logits
  int first_row = 0;    // of the step
  int output_row = 0;   // of the logits: that of first_logit

  bool samples() const { return begin + count >= sequence->known(); }  // else: a chunk in the middle
};

struct Batch {
  std::vector<BatchItem> items{};
  std::vector<Sequence*> preempted{};  // of this call; they wait again
  std::vector<Sequence*> admitted{};   // of this call
  std::vector<Sequence*> prompts{};    // those with a prompt to compute, in order
  int rows = 0;
  int prompt_logit_rows = 0;
};

// Both lists are sorted by runs_before. The vectors' room is taken at start.
struct SequenceQueues {
  std::vector<Sequence*> running{};
  std::vector<Sequence*> waiting{};
};

void insert_sorted(std::vector<Sequence*>& list, Sequence* sequence);
void schedule(SequenceQueues& queues, PrefixTree& cache, const SchedulerLimits& limits, Batch& batch);
// Gives back all pages; what the sequence has computed is lost, except through the prefix tree.
void release_pages(Sequence& sequence, PrefixTree& cache);
// Pages that a sequence with that many positions needs.
inline int64_t pages_for(int64_t positions, int page_tokens) { return (positions + page_tokens - 1) / page_tokens; }

}  // namespace plumb
