// The forward pass of glm_moe_dsa and deepseek_v32 (model.md section 3.1).
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "model/blocks.h"
#include "model/rank_link.h"
#include "tensor/encode.h"

namespace plumb {

namespace {

constexpr int kMostRecordedRows = 256;  // of a step: decode steps, with drafts; larger ones are worth their launches

int padded(int count, int limit) {
  return std::min(static_cast<int>(std::bit_ceil(static_cast<unsigned>(count))), limit);
}

// Rows of a step that can be recorded are padded, and its index logits are as wide as those of steps a little longer,
// so that few recordings serve all steps. The same where somebody watches: what is seen is what is recorded.
void choose_shape(Forward& f, const StepInput& step, StepShape shape) {
  ForwardBuffers& b = f.buffers;
  int longest = step.columns;
  for (int row = 0; row < step.paging.rows; ++row)
    if (step.paging.sequence[row] >= 0) longest = std::max(longest, step.paging.positions[row] + 1);
  shape.rows = step.paging.rows;
  shape.logit_rows = static_cast<int>(step.logit_rows.size());
  shape.columns = longest > f.config.index_topk ? longest : 0;
  shape.sequences = step.paging.sequences;
  shape.page_table_stride = step.paging.page_table_stride;
  shape.observers = f.executor.observers(Watching::InStream);
  b.shape = shape;
  b.padded = b.recordable = false;
  if (b.memory.record == nullptr || f.executor.tapped() || shape.rows > kMostRecordedRows || shape.rows == 0) return;
  shape.rows = padded(shape.rows, b.limits.rows);
  if (shape.logit_rows > 0) shape.logit_rows = padded(shape.logit_rows, b.limits.logit_rows);
  if (shape.columns > 0) shape.columns = padded(shape.columns, b.limits.context);
  if (int64_t{shape.columns} * shape.rows > b.index_logits_elements) return;
  b.shape = shape;
  b.padded = true;
  b.recordable = !f.executor.watched();
}

// On a device the step's arrays, the caller's among them, are copied in one piece; on the host they are read in place.
void bring_in(Forward& f, const StepInput& step) {
  ForwardBuffers& b = f.buffers;
  b.paging = step.paging;
  b.paging.rows = b.shape.rows;
  std::copy(step.logit_rows.begin(), step.logit_rows.end(), b.host_step.logit_rows);
  std::iota(b.host_step.hidden_rows, b.host_step.hidden_rows + b.shape.rows, 0);
  std::copy(step.hidden_rows.begin(), step.hidden_rows.end(), b.host_step.hidden_rows);
  if (b.memory.where == Where::Host) return;
  const Paging& p = step.paging;
  const int64_t table_bytes = int64_t{p.sequences} * p.page_table_stride * 4;
  std::byte* const end = reinterpret_cast<std::byte*>(b.step.page_table) + table_bytes;
  PLUMB_CHECK(end <= b.step_base + b.step_bytes, "the page table is larger than the buffers were made for");
  const int padding = b.shape.rows - p.rows;
  std::copy_n(p.positions, p.rows, b.host_step.positions);
  std::fill_n(b.host_step.positions + p.rows, padding, 0);
  std::copy_n(p.sequence, p.rows, b.host_step.sequence);
  std::fill_n(b.host_step.sequence + p.rows, padding, -1);
  std::fill_n(b.host_step.logit_rows + step.logit_rows.size(),
              b.shape.logit_rows - static_cast<int>(step.logit_rows.size()), 0);
  std::copy_n(p.page_table, table_bytes / 4, b.host_step.page_table);
  b.memory.upload(b.step_base, b.host_step_base, static_cast<size_t>(end - b.step_base), f.executor.stream());
  b.paging.positions = b.step.positions;
  b.paging.sequence = b.step.sequence;
  b.paging.page_table = b.step.page_table;
}

}  // namespace

namespace {

void compute_angles(const Forward& f, int32_t position, float* cos_row, float* sin_row) {
  const ForwardBuffers& b = f.buffers;
  for (size_t i = 0; i < b.inv_freq.size(); ++i) {
    const float angle = static_cast<float>(position) * b.inv_freq[i];
    const float cos = static_cast<float>(std::cos(static_cast<double>(angle))) * b.cos_sin_factor;
    const float sin = static_cast<float>(std::sin(static_cast<double>(angle))) * b.cos_sin_factor;
    cos_row[i] = f.numerics.rope_bf16 ? round_bf16(cos) : cos;
    sin_row[i] = f.numerics.rope_bf16 ? round_bf16(sin) : sin;
  }
}

// cos and sin of a position, half a head each. Those of the context are kept in a table, which is zeroed: no angle has
// both of them zero.
void put_angles(Forward& f, int32_t position, float* cos_row, float* sin_row) {
  ForwardBuffers& b = f.buffers;
  const size_t half = b.inv_freq.size();
  if (position < 0 || position >= b.limits.context + b.limits.page_tokens)
    return compute_angles(f, position, cos_row, sin_row);
  float* entry = b.angles + static_cast<size_t>(position) * 2 * half;
  if (entry[0] == 0 && entry[half] == 0) compute_angles(f, position, entry, entry + half);
  std::copy_n(entry, half, cos_row);
  std::copy_n(entry + half, half, sin_row);
}

}  // namespace

// Angles are the float32 products of model.md 3.3, faithfully so: at large positions their rounding decides selections.
// The cosine of such an angle is then taken exactly (double keeps 2^20 rad reduced to far below a float32 ulp).
void prepare_step(Forward& f, const StepInput& step, StepShape shape) {
  ForwardBuffers& b = f.buffers;
  PLUMB_CHECK(step.paging.rows <= b.limits.rows, "more rows than the buffers were made for");
  PLUMB_CHECK(static_cast<int>(step.logit_rows.size()) <= b.limits.logit_rows,
              "more logit rows than the buffers were made for");
  choose_shape(f, step, shape);
  // The copy of the step before may still be reading the arrays that are written here.
  b.memory.synchronise(f.executor.stream());
  f.executor.begin_pass(step.paging);
  const size_t half = b.inv_freq.size();
  for (int row = 0; row < b.shape.rows; ++row) {
    const bool padding = row >= step.paging.rows || step.paging.sequence[row] < 0;
    const int32_t position = padding ? 0 : step.paging.positions[row];
    b.host_step.ids[row] = padding ? 0 : step.token_ids[row] - f.weights.first_token;  // outside the share: zeros
    b.host_step.topk_positions[row] = padding ? -1 : position;
    const size_t at = static_cast<size_t>(row) * half;
    put_angles(f, position, b.host_step.cos + at, b.host_step.sin + at);
  }
  bring_in(f, step);
}

void run_step(Forward& f, const std::function<void()>& launches) {
  ForwardBuffers& b = f.buffers;
  if (f.executor.halted()) return;
  if (!b.recordable) return launches();
  const auto [found, is_new] = b.recordings.try_emplace(b.shape);
  if (is_new) return launches();  // it may be the only one: recording takes longer than a step
  if (found->second == nullptr) found->second = b.memory.record(launches, f.executor.stream());
  b.memory.replay(found->second.get(), f.executor.stream());
}

void add_ranks(Forward& f, SiteId site, const Tensor& x) {
  if (site < 0) return;
  f.executor.run(site, x.dim(0), AllReduceArgs{.comm = &f.link->comm(), .x = x, .numerics = f.numerics});
}

void embed_tokens(Forward& f, const Tensor& y) {
  f.executor.run(f.sites.embed, y.dim(0),
                 EmbedArgs{.ids = f.buffers.step.ids, .table = &f.weights.embed, .y = y, .numerics = f.numerics});
  add_ranks(f, f.sites.embed_sum, y);
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

void compute_logits(Forward& f, const Tensor& hidden) {
  ForwardBuffers& b = f.buffers;
  const int64_t count = b.shape.logit_rows;
  if (count == 0) return;
  f.executor.run(f.sites.gather, count,
                 GatherRowsArgs{.x = hidden, .rows = b.step.logit_rows, .y = b.gathered.head(count)},
                 {.map = b.host_step.logit_rows});
  const bool shared = f.sites.logits_gather >= 0;
  const Tensor own = shared ? Tensor(b.logits_share.data, DType::F32, {count, f.weights.lm_head.n()}, b.memory.where)
                            : b.logits.head(count);
  f.executor.run(f.sites.lm_head, count,
                 LinearArgs{.w = &f.weights.lm_head, .x = b.gathered.head(count), .y = own, .numerics = f.numerics},
                 {.map = b.host_step.logit_rows});
  if (shared)
    f.executor.run(
        f.sites.logits_gather, count,
        GatherColumnsArgs{
            .comm = &f.link->comm(), .x = own, .share = b.limits.vocabulary_share, .y = b.logits.head(count)},
        {.map = b.host_step.logit_rows});
  f.executor.tap(-1, "logits", b.logits.head(count));
}

namespace {

void run_layers(Forward& f) {
  ForwardBuffers& b = f.buffers;
  const ModelConfig& config = f.config;
  const int rows = b.shape.rows;
  embed_tokens(f, b.residual.head(rows));
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
  f.executor.run(f.sites.finite, rows,
                 FiniteRowsArgs{.x = b.hidden.head(rows), .finite = b.report.head(rows).columns(0, 1)});
  compute_logits(f, b.hidden.head(rows));
  f.executor.end_pass();
}

}  // namespace

StepOutput forward(Forward& f, const StepInput& step) {
  ForwardBuffers& b = f.buffers;
  const int rows = step.paging.rows;
  if (f.link != nullptr) f.link->announce_step(step);
  prepare_step(f, step);
  run_step(f, [&f] { run_layers(f); });
  if (f.link != nullptr) f.link->end_step();
  const auto logits = static_cast<int64_t>(step.logit_rows.size());
  return {.logits = logits == 0 ? Tensor{} : b.logits.head(logits),
          .hidden = b.hidden.head(rows),
          .report = b.report.head(rows)};
}

}  // namespace plumb
