// The multi-token-prediction layer (model.md 3.11).
#include <algorithm>

#include "model/blocks.h"

namespace plumb {
namespace {

// x = eh_proj(concat(enorm(embedding of the next token), hnorm(hidden)))
void combine(Forward& f, int rows, const Tensor& hidden) {
  ForwardBuffers& b = f.buffers;
  const int64_t width = f.config.hidden_size;
  const double eps = static_cast<double>(f.config.rms_norm_eps);
  f.executor.run(
      f.sites.embed, rows,
      EmbedArgs{.ids = b.step.ids, .table = &f.weights.embed, .y = b.delta.head(rows), .numerics = f.numerics});
  f.executor.run(f.sites.enorm, rows,
                 RmsNormArgs{.x = b.delta.head(rows),
                             .weight = f.weights.enorm.data(),
                             .eps = eps,
                             .y = b.eh.head(rows).columns(0, width),
                             .numerics = f.numerics});
  f.executor.run(f.sites.hnorm, rows,
                 RmsNormArgs{.x = hidden,
                             .weight = f.weights.hnorm.data(),
                             .eps = eps,
                             .y = b.eh.head(rows).columns(width, width),
                             .numerics = f.numerics});
  f.executor.run(
      f.sites.eh_proj, rows,
      LinearArgs{.w = &f.weights.eh_proj, .x = b.eh.head(rows), .y = b.residual.head(rows), .numerics = f.numerics});
}

// Keeps the set of each sequence's last row, for later drafts of the round.
void keep_sets(ForwardBuffers& b, const Paging& paging, int topk) {
  for (int row = 0; row < paging.rows; ++row) {
    if (paging.sequence[row] < 0) continue;
    PLUMB_CHECK(paging.sequence[row] < b.draft_sets.dim(0), "more sequences than the buffers were made for");
    int32_t* set = b.draft_sets.row_i32(paging.sequence[row]);  // rows of a sequence ascend, so the last one stays
    std::copy_n(b.mtp_selection.row_i32(row), topk, set);
    std::fill_n(set + topk, kMaxReusedDrafts, -1);
  }
}

// Appends each row's own position to its sequence's kept set.
void extend_sets(ForwardBuffers& b, const Paging& paging) {
  const int64_t width = b.draft_sets.dim(1);
  for (int row = 0; row < paging.rows; ++row) {
    int32_t* out = b.draft_selection.row_i32(row);
    if (paging.sequence[row] < 0) {
      std::fill_n(out, width, -1);
      continue;
    }
    int32_t* set = b.draft_sets.row_i32(paging.sequence[row]);
    int32_t* end = std::find(set, set + width, -1);
    PLUMB_CHECK(end != set + width, "an index set was reused for more drafts than it has room for");
    if (end == set || end[-1] != paging.positions[row]) *end = paging.positions[row];
    std::copy_n(set, width, out);
  }
}

}  // namespace

StepOutput mtp_forward(Forward& f, const StepInput& step, Tensor hidden, bool reuse_selection) {
  ForwardBuffers& b = f.buffers;
  const int rows = step.paging.rows;
  PLUMB_CHECK(f.weights.has_mtp && b.limits.mtp, "the MTP layer is not loaded");
  PLUMB_CHECK(b.memory.where == Where::Host, "the plan refuses drafts on this device");
  prepare_step(f, step);
  combine(f, rows, hidden.head(rows));
  if (reuse_selection) extend_sets(b, step.paging);
  const LayerStep s{.f = f,
                    .layer = f.config.num_hidden_layers,
                    .paging = b.paging,
                    .selection = (reuse_selection ? b.draft_selection : b.mtp_selection).head(rows),
                    .select = !reuse_selection};
  decoder_layer(s, /*add_delta=*/false);
  if (!reuse_selection) keep_sets(b, step.paging, f.config.index_topk);
  f.executor.run(f.sites.head_norm, rows,
                 AddRmsNormArgs{.residual = b.residual.head(rows),
                                .delta = b.delta.head(rows),
                                .weight = f.weights.head_norm.data(),
                                .eps = static_cast<double>(f.config.rms_norm_eps),
                                .y = b.z.head(rows),
                                .numerics = f.numerics});
  s.tap("output", b.residual.head(rows));
  return {.logits = logits_of(f, b.z.head(rows), step.logit_rows), .hidden = b.z.head(rows)};
}

}  // namespace plumb
