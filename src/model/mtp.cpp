// The multi-token-prediction layer (model.md 3.11).
#include <functional>

#include "model/blocks.h"
#include "model/rank_link.h"

namespace plumb {
namespace {

// residual = eh_proj(concat(enorm(embedding of the next token), hnorm(hidden)))
void combine(Forward& f, const Tensor& hidden) {
  ForwardBuffers& b = f.buffers;
  const int rows = b.shape.rows;
  const int64_t width = f.config.hidden_size;
  const double eps = static_cast<double>(f.config.rms_norm_eps);
  embed_tokens(f, b.delta.head(rows));
  f.executor.run(f.sites.enorm, rows,
                 RmsNormArgs{.x = b.delta.head(rows),
                             .weight = f.weights.enorm.data(),
                             .eps = eps,
                             .y = b.eh.head(rows).columns(0, width),
                             .numerics = f.numerics});
  f.executor.run(f.sites.gather, rows, GatherRowsArgs{.x = hidden, .rows = b.step.hidden_rows, .y = b.x.head(rows)});
  f.executor.run(f.sites.hnorm, rows,
                 RmsNormArgs{.x = b.x.head(rows),
                             .weight = f.weights.hnorm.data(),
                             .eps = eps,
                             .y = b.eh.head(rows).columns(width, width),
                             .numerics = f.numerics});
  f.executor.run(
      f.sites.eh_proj, rows,
      LinearArgs{.w = &f.weights.eh_proj, .x = b.eh.head(rows), .y = b.residual.head(rows), .numerics = f.numerics});
}

void run_layer(Forward& f, const Tensor& hidden, bool reuse_selection) {
  ForwardBuffers& b = f.buffers;
  const int rows = b.shape.rows;
  const Tensor selection = (reuse_selection ? b.draft_selection : b.mtp_selection).head(rows);
  combine(f, hidden);
  const DraftSetArgs set{.extend = reuse_selection, .selection = selection, .sets = b.draft_sets, .paging = b.paging};
  if (reuse_selection) f.executor.run(f.sites.draft_set, rows, set);
  const LayerStep s{.f = f,
                    .layer = f.config.num_hidden_layers,
                    .paging = b.paging,
                    .selection = selection,
                    .select = !reuse_selection};
  decoder_layer(s, /*add_delta=*/false);
  if (!reuse_selection) f.executor.run(f.sites.draft_set, rows, set);
  f.executor.run(f.sites.head_norm, rows,
                 AddRmsNormArgs{.residual = b.residual.head(rows),
                                .delta = b.delta.head(rows),
                                .weight = f.weights.head_norm.data(),
                                .eps = static_cast<double>(f.config.rms_norm_eps),
                                .y = b.z.head(rows),
                                .numerics = f.numerics});
  s.tap("output", b.residual.head(rows));
  compute_logits(f, b.z.head(rows));
  f.executor.end_pass();
}

}  // namespace

StepOutput mtp_forward(Forward& f, const StepInput& step, Tensor hidden, bool reuse_selection) {
  ForwardBuffers& b = f.buffers;
  PLUMB_CHECK(f.weights.has_mtp && b.limits.mtp, "the MTP layer is not loaded");
  if (f.link != nullptr) f.link->announce_draft(step, hidden.data == b.z.data, reuse_selection);
  prepare_step(f, step, {.hidden = hidden.data, .reuse_selection = reuse_selection});
  const auto launches = [&] { run_layer(f, hidden, reuse_selection); };
  run_step(f, std::ref(launches));  // by reference: a step allocates nothing
  if (f.link != nullptr) f.link->end_step();
  const auto logits = static_cast<int64_t>(step.logit_rows.size());
  return {.logits = logits == 0 ? Tensor{} : b.logits.head(logits),
          .hidden = b.z.head(step.paging.rows),
          .report = b.report.head(step.paging.rows)};
}

}  // namespace plumb
