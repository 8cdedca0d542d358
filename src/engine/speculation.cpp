#include "engine/speculation.h"

#include <algorithm>
#include <numeric>

namespace plumb {

Drafter::Drafter(Forward& forward, int draft_tokens, const StepSizes& sizes)
    : forward_(forward), draft_tokens_(draft_tokens), page_tokens_(sizes.page_tokens) {
  const size_t most = static_cast<size_t>(sizes.sequences);
  rounds_.reserve(most);
  for (std::vector<int32_t>* array : {&tokens_, &positions_, &sequence_, &rows_, &logit_rows_}) array->reserve(most);
}

void Drafter::run(StepBuilder& step, std::span<const BatchItem> items, std::span<const ItemResult> results,
                  const StepOutput& output, Sampler& sampler,
                  const std::function<void(const StepOutput&)>& after_pass) {
  StepOutput pass = first_pass(step, items, results, output);
  take_drafts(pass, sampler);
  after_pass(pass);
  for (int drafted = 1; drafted < draft_tokens_; ++drafted) {
    std::erase_if(rounds_, [&](const Round& round) { return !wants_another(*round.sequence, drafted); });
    if (rounds_.empty()) break;
    pass = later_pass(step.input(), pass, drafted);
    take_drafts(pass, sampler);
    after_pass(pass);
  }
}

StepOutput Drafter::first_pass(StepBuilder& step, std::span<const BatchItem> items, std::span<const ItemResult> results,
                               const StepOutput& output) {
  rounds_.clear();
  logit_rows_.clear();
  const std::span<int32_t> tokens = step.next_tokens(), sequence = step.next_sequence();
  for (size_t i = 0; i < items.size(); ++i) {
    const BatchItem& item = items[i];
    const Sequence& s = *item.sequence;
    for (int row = 0; row < item.count; ++row) {
      const size_t at = static_cast<size_t>(item.first_row) + static_cast<size_t>(row);
      const bool valid = row < results[i].valid_rows;
      tokens[at] = valid ? s.tokens[static_cast<size_t>(item.begin) + static_cast<size_t>(row) + 1] : 0;
      sequence[at] = valid ? s.slot : -1;
    }
    if (!results[i].wants_drafts) continue;
    const int32_t last = item.first_row + results[i].valid_rows - 1;
    rounds_.push_back({.sequence = item.sequence, .hidden_row = last});
    logit_rows_.push_back(last);
  }
  StepInput input = step.input();
  input.token_ids = tokens.data();
  input.paging.sequence = sequence.data();
  input.logit_rows = logit_rows_;
  return mtp_forward(forward_, input, output.hidden, /*reuse_selection=*/false);
}

// Row of a sequence: the draft before as token, its z as hidden, one position further on.
StepOutput Drafter::later_pass(const StepInput& step, const StepOutput& before, int drafted) {
  const int count = static_cast<int>(rounds_.size());
  tokens_.clear();
  positions_.clear();
  sequence_.clear();
  rows_.clear();
  for (Round& round : rounds_) {
    const Sequence& s = *round.sequence;
    tokens_.push_back(s.drafts[static_cast<size_t>(drafted - 1)]);
    positions_.push_back(s.known() - 2 + drafted);
    sequence_.push_back(s.slot);
    rows_.push_back(round.hidden_row);
    round.hidden_row = static_cast<int32_t>(rows_.size()) - 1;
  }
  logit_rows_.resize(rows_.size());
  std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
  StepInput input = step;
  input.token_ids = tokens_.data();
  input.paging.rows = count;
  input.paging.positions = positions_.data();
  input.paging.sequence = sequence_.data();
  input.logit_rows = logit_rows_;
  input.hidden_rows = rows_;
  return mtp_forward(forward_, input, before.hidden, forward_.config.index_share_for_mtp_iteration);
}

void Drafter::take_drafts(const StepOutput& output, Sampler& sampler) {
  if (rounds_.empty()) return;
  sampler.clear();
  for (size_t i = 0; i < rounds_.size(); ++i) sampler.add_greedy();
  sampler.run(output.logits);
  for (size_t i = 0; i < rounds_.size(); ++i) {
    const SampleOut& out = sampler.out(static_cast<int>(i));
    Sequence& s = *rounds_[i].sequence;
    // A draft is a guess: where the layer gives none, the sequence goes on without.
    if (!out.poisoned) s.drafts[static_cast<size_t>(s.draft_count++)] = out.id;
  }
}

// The next pass writes the slot of the last known token, or of a draft: it may lie on a page not yet there.
bool Drafter::wants_another(const Sequence& sequence, int drafted) const {
  const int left = sequence.request.max_tokens - sequence.generated() - 1;
  const int position = sequence.known() - 2 + drafted;
  return sequence.draft_count == drafted && drafted < left &&
         position / page_tokens_ < static_cast<int>(sequence.pages.size());
}

}  // namespace plumb
