// Draws tokens through the executor's Sample op: one row of parameters for each row of logits. What a request gets
// depends on its own parameters, seed and position alone.
#pragma once

#include <vector>

#include "engine/sequence.h"
#include "ops/executor.h"

namespace plumb {

class Sampler {
 public:
  Sampler(Executor& executor, SiteId site, int vocab, int max_rows);

  void clear() { rows_.clear(); }
  // The token after `ahead` drafts have been taken as true; 0: the one after the last known token.
  void add_draw(const Sequence& sequence, int ahead);
  // Scores the known token at `position`: its log-probability and the best ones.
  void add_score(const Sequence& sequence, int position);
  // The most likely token, nothing else.
  void add_greedy();
  // One op over all rows added; `logits` has one row for each.
  void run(const Tensor& logits);
  // Words of a mask for whoever needs one in passing.
  std::span<uint32_t> grammar_scratch() { return std::span(masks_).first(words_); }
  // A row of the last run had a logit that no draw can be made from.
  bool any_poisoned() const;
  const SampleOut& out(int row) const { return out_[static_cast<size_t>(row)]; }

 private:
  void constrain(const Sequence& sequence, int ahead, SampleRow& row);

  Executor& executor_;
  SiteId site_ = -1;
  int vocab_ = 0;
  size_t words_ = 0;               // of the mask of one row
  std::vector<uint32_t> masks_{};  // [rows, words]: ids that the grammars allow
  std::vector<SampleRow> rows_{};
  std::vector<SampleOut> out_{};
};

}  // namespace plumb
