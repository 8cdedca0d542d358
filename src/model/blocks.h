// The blocks of a decoder layer, one file each. Each reads `buffers.x` (normed) and leaves its result, before the
// residual addition, in `buffers.delta`.
#pragma once

#include "model/buffers.h"
#include "model/model.h"

namespace plumb {

// x = the sum over the ranks, if there are several.
void add_ranks(Forward& f, SiteId site, const Tensor& x);
// The token ids' embeddings.
void embed_tokens(Forward& f, const Tensor& y);

// What the blocks of one layer share in one step.
struct LayerStep {
  Forward& f;
  int layer = 0;  // index into weights.layers and the cache; num_hidden_layers is the MTP layer
  const Paging& paging;
  Tensor selection{};   // [rows, index_topk] i32: which positions the layer attends to
  bool select = false;  // run the layer's own indexer, else use what is in `selection`

  const LayerWeights& weights() const { return f.weights.layers[static_cast<size_t>(layer)]; }
  const LayerSites& sites() const { return f.sites.layers[static_cast<size_t>(layer)]; }
  Tensor rows(const Tensor& buffer) const { return buffer.head(paging.rows); }
  void tap(std::string_view name, const Tensor& value) const { f.executor.tap(layer, name, value); }
  // A result of which each rank has a part.
  void add_ranks(SiteId site, const Tensor& x) const { plumb::add_ranks(f, site, rows(x)); }
  void linear(SiteId site, const Weight& w, const Tensor& x, const Tensor& y) const {
    f.executor.run(site, paging.rows, LinearArgs{.w = &w, .x = rows(x), .y = rows(y), .numerics = f.numerics});
  }
};

void mla_attention(const LayerStep& s);  // model.md 3.4 to 3.6
void write_index_keys(const LayerStep& s);
void select_positions(const LayerStep& s);  // model.md 3.7, 3.8: fills s.selection; reads x and q_latent
void mlp_block(const LayerStep& s);         // model.md 3.10: dense MLP, or router, experts and shared expert

// Copies ids, positions and angles into the buffers, with padding rows made harmless. `shape` says what kind of step;
// what follows from its rows and positions is filled in, in ForwardBuffers::shape.
void prepare_step(Forward& f, const StepInput& step, StepShape shape = {});
// Runs `launches`, or replays what they were recorded as in an earlier step of the same shape.
void run_step(Forward& f, const std::function<void()>& launches);
// Attention and MLP of one layer with the norms in front of them. `residual` += the layer's attention output; the MLP's
// is left in `delta` for the next norm, which adds it.
void decoder_layer(const LayerStep& s, bool add_delta);
// lm_head on the step's logit rows of `hidden`; fills ForwardBuffers::logits.
void compute_logits(Forward& f, const Tensor& hidden);

}  // namespace plumb
