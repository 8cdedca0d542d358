// Drafts of the next tokens by the MTP layer (model.md 3.11). Verification is the next step itself: it computes a row
// for each draft, the sampler draws each row's token with that position's own random number, and a draft counts while
// it equals what was drawn. So the output, greedy or not, is that of a run without speculation, token for token.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "engine/step.h"

namespace plumb {

// What became of a batch item's rows.
struct ItemResult {
  int valid_rows = 0;         // leading rows whose tokens turned out true
  bool wants_drafts = false;  // the sequence goes on, with a token that was drawn in this step
};

class Drafter {
 public:
  Drafter(Forward& forward, int draft_tokens, const StepSizes& sizes);

  // Runs the MTP layer over the valid rows of the step, which fills its cache for them, then drafts for the sequences
  // that want it. Rows of rejected drafts are padding; their slots are written again before they are read.
  // after_pass(output): of each pass, before the next.
  void run(StepBuilder& step, std::span<const BatchItem> items, std::span<const ItemResult> results,
           const StepOutput& output, Sampler& sampler, const std::function<void(const StepOutput&)>& after_pass);

 private:
  struct Round {
    Sequence* sequence = nullptr;
    int32_t hidden_row = 0;  // of the pass before: where its z is
  };
  StepOutput first_pass(StepBuilder& step, std::span<const BatchItem> items, std::span<const ItemResult> results,
                        const StepOutput& output);
  StepOutput later_pass(const StepInput& step, const StepOutput& before, int drafted);
  void take_drafts(const StepOutput& output, Sampler& sampler);
  bool wants_another(const Sequence& sequence, int drafted) const;

  Forward& forward_;
  int draft_tokens_ = 0;
  int page_tokens_ = 64;
  std::vector<Round> rounds_{};  // sequences still drafting
  std::vector<int32_t> tokens_{}, positions_{}, sequence_{}, rows_{}, logit_rows_{};
};

}  // namespace plumb
