// The forward pass of glm_moe_dsa and deepseek_v32 (model.md section 3.1).
#include <algorithm>
#include <cmath>

#include "model/blocks.h"
#include "tensor/encode.h"

namespace plumb {

namespace {

// On a device the step's arrays, the caller's among them, are copied in one piece; on the host they are read in place.
void bring_in(Forward& f, const StepInput& step) {
  ForwardBuffers& b = f.buffers;
  b.paging = step.paging;
  if (b.memory.where == Where::Host) return;
  const Paging& p = step.paging;
  const int64_t table_bytes = int64_t{p.sequences} * p.page_table_stride * 4;
  PLUMB_CHECK(reinterpret_cast<std::byte*>(b.step.page_table) + table_bytes <= b.step_base + b.step_bytes,
              "the page table is larger than the buffers were made for");
  std::copy_n(p.positions, p.rows, b.host_step.positions);
  std::copy_n(p.sequence, p.rows, b.host_step.sequence);
  std::copy(step.logit_rows.begin(), step.logit_rows.end(), b.host_step.logit_rows);
  std::copy_n(p.page_table, table_bytes / 4, b.host_step.page_table);
  b.memory.upload(b.step_base, b.host_step_base, static_cast<size_t>(b.step_bytes), f.executor.stream());
  b.paging.positions = b.step.positions;
  b.paging.sequence = b.step.sequence;
  b.paging.page_table = b.step.page_table;
}

}  // namespace

// Angles are the float32 products of model.md 3.3, faithfully so: at large positions their rounding decides selections.
// The cosine of such an angle is then taken exactly (double keeps 2^20 rad reduced to far below a float32 ulp).
void prepare_step(Forward& f, const StepInput& step) {
  ForwardBuffers& b = f.buffers;
  PLUMB_CHECK(step.paging.rows <= b.limits.rows, "more rows than the buffers were made for");
  const size_t half = b.inv_freq.size();
  for (int row = 0; row < step.paging.rows; ++row) {
    const bool padding = step.paging.sequence[row] < 0;
    const int32_t position = padding ? 0 : step.paging.positions[row];
    b.host_step.ids[row] = padding ? 0 : step.token_ids[row];
    b.host_step.topk_positions[row] = padding ? -1 : position;
    float* cos_row = b.host_step.cos + static_cast<size_t>(row) * half;
    float* sin_row = b.host_step.sin + static_cast<size_t>(row) * half;
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * b.inv_freq[i];
      cos_row[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * b.cos_sin_factor;
      sin_row[i] = static_cast<float>(std::sin(static_cast<double>(angle))) * b.cos_sin_factor;
      if (!f.numerics.rope_bf16) continue;
      cos_row[i] = round_bf16(cos_row[i]);
      sin_row[i] = round_bf16(sin_row[i]);
    }
  }
  bring_in(f, step);
}

void decoder_layer(const LayerStep& s, bool add_delta) {
  ForwardBuffers& b = s.f.buffers;
  Executor& ex = s.f.executor;
  const LayerWeights& w = s.weights();
  const int rows = s.paging.rows;
  const double eps = static_cast<double>(s.f.config.rms_norm_eps);
  if (add_delta) {
    ex.run(s.sites().input_norm, rows,
           AddRmsNormArgs{.residual = s.rows(b.residual),
                          .delta = s.rows(b.delta),
                          .weight = w.input_norm.data(),
                          .eps = eps,
                          .y = s.rows(b.x),
                          .numerics = s.f.numerics});
    ex.tap(s.layer - 1, "output", s.rows(b.residual));
  } else {
    ex.run(s.sites().input_norm, rows,
           RmsNormArgs{.x = s.rows(b.residual),
                       .weight = w.input_norm.data(),
                       .eps = eps,
                       .y = s.rows(b.x),
                       .numerics = s.f.numerics});
  }
  mla_attention(s);
  s.tap("attn_output", s.rows(b.delta));
  ex.run(s.sites().post_norm, rows,
         AddRmsNormArgs{.residual = s.rows(b.residual),
                        .delta = s.rows(b.delta),
                        .weight = w.post_norm.data(),
                        .eps = eps,
                        .y = s.rows(b.x),
                        .numerics = s.f.numerics});
  mlp_block(s);
  s.tap("mlp_output", s.rows(b.delta));
}

Tensor logits_of(Forward& f, const Tensor& hidden, std::span<const int32_t> logit_rows) {
  ForwardBuffers& b = f.buffers;
  const auto count = static_cast<int64_t>(logit_rows.size());
  PLUMB_CHECK(count <= b.limits.logit_rows, "more logit rows than the buffers were made for");
  if (count == 0) return {};
  f.executor.run(f.sites.gather, count,
                 GatherRowsArgs{.x = hidden,
                                .rows = b.memory.where == Where::Host ? logit_rows.data() : b.step.logit_rows,
                                .y = b.gathered.head(count)});
  f.executor.run(
      f.sites.lm_head, count,
      LinearArgs{
          .w = &f.weights.lm_head, .x = b.gathered.head(count), .y = b.logits.head(count), .numerics = f.numerics});
  f.executor.tap(-1, "logits", b.logits.head(count));
  return b.logits.head(count);
}

StepOutput forward(Forward& f, const StepInput& step) {
  ForwardBuffers& b = f.buffers;
  const ModelConfig& config = f.config;
  const int rows = step.paging.rows;
  prepare_step(f, step);
  f.executor.run(
      f.sites.embed, rows,
      EmbedArgs{.ids = b.step.ids, .table = &f.weights.embed, .y = b.residual.head(rows), .numerics = f.numerics});
  f.executor.tap(-1, "embeddings", b.residual.head(rows));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const LayerStep s{.f = f,
                      .layer = layer,
                      .paging = b.paging,
                      .selection = b.selection.head(rows),  // a shared layer finds the last full layer's choice here
                      .select = config.is_full_indexer(layer)};
    decoder_layer(s, /*add_delta=*/layer > 0);
  }
  f.executor.run(f.sites.final_norm, rows,
                 AddRmsNormArgs{.residual = b.residual.head(rows),
                                .delta = b.delta.head(rows),
                                .weight = f.weights.final_norm.data(),
                                .eps = static_cast<double>(config.rms_norm_eps),
                                .y = b.hidden.head(rows),
                                .numerics = f.numerics});
  f.executor.tap(config.num_hidden_layers - 1, "output", b.residual.head(rows));
  f.executor.tap(-1, "final_norm", b.hidden.head(rows));
  return {.logits = logits_of(f, b.hidden.head(rows), step.logit_rows), .hidden = b.hidden.head(rows)};
}

}  // namespace plumb
