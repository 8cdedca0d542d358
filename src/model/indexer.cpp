// Which positions each row attends to (model.md 3.7, 3.8).
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/blocks.h"

namespace plumb {
namespace {

// Queries [rows, index_n_heads * index_head_dim] and head weights [rows, index_n_heads].
void index_queries(const LayerStep& s) {
  Forward& f = s.f;
  ForwardBuffers& b = f.buffers;
  const ModelConfig& c = f.config;
  s.linear(s.sites().wq_b, s.weights().wq_b, b.q_latent, b.index_q);
  f.executor.run(s.sites().index_query, s.paging.rows,
                 IndexQueryArgs{.q = s.rows(b.index_q),
                                .heads = c.index_n_heads,
                                .head_dim = c.index_head_dim,
                                .rope_dim = c.qk_rope_head_dim,
                                .interleaved = c.indexer_rope_interleave,
                                .cos = b.step.cos,
                                .sin = b.step.sin,
                                .index_key = f.cache.geometry().index_key,
                                .numerics = f.numerics});
  s.linear(s.sites().weights_proj, s.weights().weights_proj, b.x, b.index_weights);
  if (!f.executor.tapped()) return;
  s.tap("indexer.q", s.rows(b.index_q));
  const float scale = 1 / std::sqrt(static_cast<float>(c.index_n_heads));
  std::vector<std::byte> storage;
  const Tensor weights = f.executor.to_host(s.rows(b.index_weights), storage);
  std::vector<float> scaled(weights.f32(), weights.f32() + weights.elements());
  for (float& weight : scaled) weight *= scale;  // as model.md 3.7 defines w; the logits kernel gets the factor apart
  s.tap("indexer.weights", Tensor(scaled.data(), DType::F32, {s.paging.rows, c.index_n_heads}));
}

struct Tile {
  int begin = 0, rows = 0;
  int columns = 0;  // longest length in the tile
};

// As many rows from `begin` on as the logits scratch holds.
Tile next_tile(const LayerStep& s, int begin) {
  const ForwardBuffers& b = s.f.buffers;
  Tile tile{.begin = begin};
  for (int row = begin; row < s.paging.rows; ++row) {
    const int columns = std::max(tile.columns, b.host_step.topk_positions[row] + 1);
    if (row > begin && int64_t{columns} * (tile.rows + 1) > b.index_logits_elements) break;
    tile.columns = columns;
    ++tile.rows;
  }
  return tile;
}

void select_tile(const LayerStep& s, const Tile& tile, bool with_logits) {
  Forward& f = s.f;
  ForwardBuffers& b = f.buffers;
  const ModelConfig& c = f.config;
  Tensor logits{};
  if (with_logits && tile.columns > 0) {
    PLUMB_CHECK(tile.columns <= b.index_logits_elements, "a sequence is longer than the buffers were made for");
    logits = Tensor(b.index_logits, DType::F32, {tile.rows, tile.columns}, b.memory.where);
    Paging paging = s.paging;
    paging.rows = tile.rows;
    paging.positions += tile.begin;
    paging.sequence += tile.begin;
    f.executor.run(s.sites().indexer_logits, tile.rows,
                   IndexerLogitsArgs{.q = b.index_q.slice(tile.begin, tile.rows),
                                     .weights = b.index_weights.slice(tile.begin, tile.rows),
                                     .heads = c.index_n_heads,
                                     .head_dim = c.index_head_dim,
                                     .weight_scale = 1 / std::sqrt(static_cast<float>(c.index_n_heads)),
                                     .softmax_scale = 1 / std::sqrt(static_cast<float>(c.index_head_dim)),
                                     .paging = paging,
                                     .kv = f.cache.view(s.layer),
                                     .logits = logits},
                   {.first = tile.begin});
    s.tap("indexer.scores", logits);
  }
  f.executor.run(s.sites().topk, tile.rows,
                 TopKArgs{.logits = logits,
                          .positions = b.step.topk_positions + tile.begin,
                          .topk = c.index_topk,
                          .indices = s.selection.slice(tile.begin, tile.rows)},
                 {.first = tile.begin});
}

}  // namespace

// Also while every row is still short enough to attend to everything: later rows need these keys.
void write_index_keys(const LayerStep& s) {
  Forward& f = s.f;
  ForwardBuffers& b = f.buffers;
  const ModelConfig& c = f.config;
  s.linear(s.sites().wk, s.weights().wk, b.x, b.index_k);
  f.executor.run(s.sites().index_key, s.paging.rows,
                 IndexKeyWriteArgs{.k = s.rows(b.index_k),
                                   .weight = s.weights().k_norm.data(),
                                   .bias = s.weights().k_norm_bias.data(),
                                   .rope_dim = c.qk_rope_head_dim,
                                   .interleaved = c.indexer_rope_interleave,
                                   .cos = b.step.cos,
                                   .sin = b.step.sin,
                                   .paging = s.paging,
                                   .kv = f.cache.view(s.layer),
                                   .numerics = f.numerics});
  s.tap("indexer.k", s.rows(b.index_k));
}

void select_positions(const LayerStep& s) {
  const ForwardBuffers& b = s.f.buffers;
  const int topk = s.f.config.index_topk;
  const bool needed = s.f.executor.tapped() || b.shape.columns > 0;  // a watched step shows what others may skip
  if (needed) index_queries(s);
  for (int begin = 0; begin < s.paging.rows;) {
    const Tile tile = b.padded ? Tile{.rows = b.shape.rows, .columns = b.shape.columns} : next_tile(s, begin);
    select_tile(s, tile, s.f.executor.tapped() || tile.columns > topk);
    begin += tile.rows;
  }
  s.tap("indexer.topk", s.selection);
}

}  // namespace plumb
