// One pass of the model over a batch: the arrays it reads. Taken once for the largest step; a decode step allocates
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "model/model.h"

namespace plumb {

// What an observer of steps sees, after the forward pass.
struct StepView {
  uint64_t number = 0;
  std::span<const BatchItem> items{};
  const StepInput& input;
  const StepOutput& output;
};

struct StepSizes {
  int rows = 1;
  int logit_rows = 1;
  int sequences = 1;  // slots of the page table
  int pages_per_sequence = 1;
  int page_tokens = 64;
};

// A running sequence has a row ("slot") of the page table for itself and keeps it, so a step copies only the page ids
// that are new.
class StepBuilder {
 public:
  explicit StepBuilder(const StepSizes& sizes);

  // Fills in the items' `output_row`, gives slots to sequences without one. Valid until the next call.
  const StepInput& build(std::span<BatchItem> items);
  void free_slot(Sequence& sequence);

  // Arrays for passes that follow the step (speculation): same rows, other tokens. Writable.
  std::span<int32_t> next_tokens() { return next_tokens_; }      // [rows]
  std::span<int32_t> next_sequence() { return next_sequence_; }  // [rows]
  const StepInput& input() const { return input_; }
  const StepSizes& sizes() const { return sizes_; }

 private:
  void sync_pages(Sequence& sequence);

  StepSizes sizes_{};
  StepInput input_{};
  std::vector<int32_t> tokens_{}, positions_{}, sequence_{}, logit_rows_{};
  std::vector<int32_t> next_tokens_{}, next_sequence_{};
  std::vector<int32_t> page_table_{};  // [sequences, pages_per_sequence]; -1 where there is no page
  std::vector<int32_t> free_slots_{};
};

}  // namespace plumb
