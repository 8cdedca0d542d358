#include "engine/record_steps.h"

#include <bit>
#include <chrono>
#include <numeric>
#include <vector>

#include "model/buffers.h"

namespace plumb {
namespace {

class Recording {
 public:
  Recording(Forward& forward, const StepSizes& sizes)
      : forward_(forward),
        sizes_(sizes),
        padding_(static_cast<size_t>(sizes.rows), -1),
        zeros_(static_cast<size_t>(sizes.rows), 0),
        rows_(static_cast<size_t>(sizes.rows)),
        table_(static_cast<size_t>(sizes.sequences) * static_cast<size_t>(sizes.pages_per_sequence), -1) {
    std::iota(rows_.begin(), rows_.end(), 0);
  }

  // A step of `sequences` that verifies `drafts` of each, then the passes that draft anew.
  void step(int sequences, int drafts, int columns, bool drafting) {
    const int rows = sequences * (1 + drafts);
    if (rows > sizes_.rows || rows > sizes_.logit_rows) return;
    const StepInput input = padding(rows, rows, columns);
    twice([&] { forward(forward_, input); });
    if (!drafting) return;
    const Tensor hidden = forward_.buffers.hidden, z = forward_.buffers.z;
    twice([&] { mtp_forward(forward_, padding(rows, sequences, columns), hidden, false); });
    const bool reuse = forward_.config.index_share_for_mtp_iteration;
    twice([&] { mtp_forward(forward_, padding(sequences, sequences, columns), z, reuse); });
  }

 private:
  StepInput padding(int rows, int logit_rows, int columns) const {
    return {.token_ids = zeros_.data(),
            .paging = {.rows = rows,
                       .sequences = sizes_.sequences,
                       .positions = zeros_.data(),
                       .sequence = padding_.data(),
                       .page_table = table_.data(),
                       .page_table_stride = sizes_.pages_per_sequence,
                       .page_tokens = sizes_.page_tokens},
            .logit_rows = std::span(rows_).first(static_cast<size_t>(logit_rows)),
            .columns = columns};
  }
  template <class Pass>
  void twice(Pass pass) {
    const size_t before = forward_.buffers.recordings.size();
    pass();
    if (forward_.buffers.recordings.size() > before) pass();
  }

  Forward& forward_;
  const StepSizes& sizes_;
  std::vector<int32_t> padding_, zeros_, rows_, table_;
};

}  // namespace

RecordedSteps record_steps(Forward& forward, const EngineOptions& options, const StepSizes& sizes) {
  ForwardBuffers& buffers = forward.buffers;
  if (buffers.memory.record == nullptr || forward.executor.watched() || forward.link != nullptr) return {};
  const auto begin = std::chrono::steady_clock::now();
  const size_t before = buffers.recordings.size();
  Recording recording(forward, sizes);
  std::vector<int> widths = {0};  // of index logits
  const int context = buffers.limits.context;
  if (context > forward.config.index_topk)
    for (int width = forward.config.index_topk + 1; widths.back() < context; width = 2 * widths.back())
      widths.push_back(std::min(static_cast<int>(std::bit_ceil(static_cast<unsigned>(width))), context));
  for (int sequences = 1;; sequences = std::min(2 * sequences, options.max_running)) {
    for (const int width : widths) {
      recording.step(sequences, 0, width, false);
      if (options.draft_tokens > 0) recording.step(sequences, options.draft_tokens, width, true);
    }
    if (sequences == options.max_running) break;
  }
  buffers.memory.synchronise(forward.executor.stream());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return {.shapes = static_cast<int>(buffers.recordings.size() - before), .seconds = took.count()};
}

}  // namespace plumb
