#include "engine/step.h"

#include <algorithm>

#include "base/check.h"

namespace plumb {

StepBuilder::StepBuilder(const StepSizes& sizes) : sizes_(sizes) {
  const size_t rows = static_cast<size_t>(sizes.rows);
  for (std::vector<int32_t>* array : {&tokens_, &positions_, &sequence_, &next_tokens_, &next_sequence_}) {
    array->resize(rows);
  }
  logit_rows_.reserve(static_cast<size_t>(sizes.logit_rows));
  page_table_.assign(static_cast<size_t>(sizes.sequences) * static_cast<size_t>(sizes.pages_per_sequence), -1);
  for (int32_t slot = sizes.sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

const StepInput& StepBuilder::build(std::span<BatchItem> items) {
  size_t row = 0;
  logit_rows_.clear();
  for (BatchItem& item : items) {
    Sequence& s = *item.sequence;
    sync_pages(s);
    PLUMB_CHECK(item.first_row == static_cast<int>(row) && row + static_cast<size_t>(item.count) <= tokens_.size(),
                "a step has more rows than it was made for");
    item.output_row = static_cast<int>(logit_rows_.size());
    for (int i = 0; i < item.count; ++i, ++row) {
      const int position = item.begin + i;
      const int ahead = position - s.known();
      tokens_[row] = ahead < 0 ? s.tokens[static_cast<size_t>(position)] : s.drafts[static_cast<size_t>(ahead)];
      positions_[row] = position;
      sequence_[row] = s.slot;
      if (i >= item.first_logit) logit_rows_.push_back(static_cast<int32_t>(row));
    }
  }
  PLUMB_CHECK(static_cast<int>(logit_rows_.size()) <= sizes_.logit_rows, "more logits are wanted than a step gives");
  input_ = {.token_ids = tokens_.data(),
            .paging = {.rows = static_cast<int>(row),
                       .sequences = sizes_.sequences,
                       .positions = positions_.data(),
                       .sequence = sequence_.data(),
                       .page_table = page_table_.data(),
                       .page_table_stride = sizes_.pages_per_sequence,
                       .page_tokens = sizes_.page_tokens},
            .logit_rows = logit_rows_};
  return input_;
}

void StepBuilder::sync_pages(Sequence& sequence) {
  if (sequence.slot < 0) {
    PLUMB_CHECK(!free_slots_.empty(), "more sequences run than there are slots");
    sequence.slot = free_slots_.back();
    free_slots_.pop_back();
    sequence.synced_pages = 0;
  }
  int32_t* table = page_table_.data() + static_cast<ptrdiff_t>(sequence.slot) * sizes_.pages_per_sequence;
  const auto first = sequence.pages.begin() + sequence.synced_pages;
  std::copy(first, sequence.pages.end(), table + sequence.synced_pages);
  sequence.synced_pages = static_cast<int>(sequence.pages.size());
}

void StepBuilder::free_slot(Sequence& sequence) {
  if (sequence.slot < 0) return;
  int32_t* table = page_table_.data() + static_cast<ptrdiff_t>(sequence.slot) * sizes_.pages_per_sequence;
  std::fill_n(table, sizes_.pages_per_sequence, -1);
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  sequence.synced_pages = 0;
}

}  // namespace plumb
