// Dense MLP, or router, routed experts and the shared expert (model.md 3.10).
#include "model/blocks.h"

namespace plumb {
namespace {

void mlp(const LayerStep& s, const Tensor& y) {
  const LayerWeights& w = s.weights();
  s.f.executor.run(s.sites().mlp, s.paging.rows,
                   MlpArgs{.gate = &w.gate,
                           .up = &w.up,
                           .down = &w.down,
                           .x = s.rows(s.f.buffers.x),
                           .y = s.rows(y),
                           .numerics = s.f.numerics});
}

void route(const LayerStep& s) {
  ForwardBuffers& b = s.f.buffers;
  const ModelConfig& c = s.f.config;
  s.f.executor.run(s.sites().router, s.paging.rows,
                   RouterArgs{.x = s.rows(b.x),
                              .gate = &s.weights().router,
                              .bias = s.weights().correction_bias.data(),
                              .sequence = s.paging.sequence,
                              .n_group = c.n_group,
                              .topk_group = c.topk_group,
                              .norm_topk_prob = c.norm_topk_prob,
                              .routed_scaling_factor = c.routed_scaling_factor,
                              .experts = s.rows(b.experts),
                              .weights = s.rows(b.expert_weights),
                              .logits = s.rows(b.router_logits)});
  s.tap("router.logits", s.rows(b.router_logits));
  s.tap("router.experts", s.rows(b.experts));
  s.tap("router.weights", s.rows(b.expert_weights));
}

}  // namespace

namespace {

// Router, routed experts and the shared expert.
void mixture(const LayerStep& s) {
  ForwardBuffers& b = s.f.buffers;
  const LayerWeights& w = s.weights();
  route(s);
  if (w.gate) mlp(s, b.shared);
  s.f.executor.run(s.sites().moe, s.paging.rows,
                   MoeArgs{.gate = w.expert_gate,
                           .up = w.expert_up,
                           .down = w.expert_down,
                           .x = s.rows(b.x),
                           .first_expert = s.f.first_expert,
                           .experts = s.rows(b.experts),
                           .weights = s.rows(b.expert_weights),
                           .shared = w.gate ? s.rows(b.shared) : Tensor{},
                           .y = s.rows(b.delta),
                           .numerics = s.f.numerics});
}

}  // namespace

void mlp_block(const LayerStep& s) {
  if (s.weights().sparse)
    mixture(s);
  else
    mlp(s, s.f.buffers.delta);
  s.add_ranks(s.sites().mlp_sum, s.f.buffers.delta);
}

}  // namespace plumb
