// Multi-head latent attention over the selected positions (model.md 3.4 to 3.6).
#include "model/blocks.h"

namespace plumb {
namespace {

// Queries, and this step's rows of the latent cache.
void project(const LayerStep& s) {
  Forward& f = s.f;
  ForwardBuffers& b = f.buffers;
  const ModelConfig& c = f.config;
  const LayerWeights& w = s.weights();
  s.linear(s.sites().q_a, w.q_a, b.x, b.q_latent);
  f.executor.run(s.sites().q_norm, s.paging.rows,
                 RmsNormArgs{.x = s.rows(b.q_latent),
                             .weight = w.q_a_norm.data(),
                             .eps = f.latent_norm_eps,
                             .y = s.rows(b.q_latent),
                             .numerics = f.numerics});
  s.tap("q_latent", s.rows(b.q_latent));
  s.linear(s.sites().q_b, w.q_b, b.q_latent, b.q);
  f.executor.run(s.sites().q_rope, s.paging.rows,
                 RopeArgs{.x = s.rows(b.q),
                          .heads = c.num_attention_heads / b.limits.ranks,
                          .head_dim = c.qk_head_dim(),
                          .offset = c.qk_nope_head_dim,
                          .rope_dim = c.qk_rope_head_dim,
                          .interleaved = true,
                          .cos = b.step.cos,
                          .sin = b.step.sin,
                          .numerics = f.numerics});
  s.linear(s.sites().kv_a, w.kv_a, b.x, b.kv_a);
  s.tap("kv_a_proj", s.rows(b.kv_a));
  f.executor.run(s.sites().kv_write, s.paging.rows,
                 KvWriteArgs{.kv_a = s.rows(b.kv_a),
                             .weight = w.kv_a_norm.data(),
                             .eps = f.latent_norm_eps,
                             .cos = b.step.cos,
                             .sin = b.step.sin,
                             .paging = s.paging,
                             .kv = f.cache.view(s.layer),
                             .latent = f.executor.tapped() ? s.rows(b.latent) : Tensor{},
                             .numerics = f.numerics});
  s.tap("kv_latent", s.rows(b.latent));
}

}  // namespace

void mla_attention(const LayerStep& s) {
  Forward& f = s.f;
  ForwardBuffers& b = f.buffers;
  const ModelConfig& c = f.config;
  project(s);
  if (s.weights().has_indexer) write_index_keys(s);
  if (s.select) select_positions(s);
  f.executor.run(s.sites().attend, s.paging.rows,
                 MlaAttendArgs{.q = s.rows(b.q),
                               .kv_b = &s.weights().kv_b,
                               .heads = c.num_attention_heads / b.limits.ranks,
                               .nope_dim = c.qk_nope_head_dim,
                               .rope_dim = c.qk_rope_head_dim,
                               .v_dim = c.v_head_dim,
                               .softmax_scale = c.softmax_scale(),
                               .topk_indices = s.selection,
                               .paging = s.paging,
                               .kv = f.cache.view(s.layer),
                               .out = s.rows(b.attention),
                               .numerics = f.numerics});
  s.linear(s.sites().o, s.weights().o, b.attention, b.delta);
  s.add_ranks(s.sites().attention_sum, b.delta);
}

}  // namespace plumb
