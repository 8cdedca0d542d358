// Every place in the model that runs an op, and what it asks of a kernel.
#include <algorithm>
#include <utility>

#include "model/model.h"

namespace plumb {
namespace {

class Declarer {
 public:
  Declarer(const ModelConfig& config, const KvGeometry& kv, const Numerics& numerics,
           std::span<const Format> activations, const Ranks& ranks)
      : config_(config),
        kv_(kv),
        numerics_(numerics),
        activations_(activations.begin(), activations.end()),
        ranks_(ranks.count),
        heads_(config.num_attention_heads / ranks.count) {}

  void layer(int index, const LayerSources& w, bool first_norm_adds);
  void mtp(const MtpSources& w);
  SiteId plain(std::string name, Op op, int64_t width) { return add(std::move(name), {.op = op, .k = width}); }
  SiteId weighted(std::string name, Op op, const WeightSource& w) { return add(std::move(name), call_of(op, w)); }
  SiteList take() && { return std::move(list_); }
  SiteList& list() { return list_; }
  // A place where the ranks exchange rows of `width`; -1 without other ranks.
  SiteId exchange(std::string name, Op op, int64_t width) {
    return ranks_ > 1 ? add(std::move(name), {.op = op, .k = width, .ranks = ranks_}) : -1;
  }

 private:
  SiteId add(std::string name, Call call) {
    call.numerics = numerics_;
    call.activations = activations_;
    list_.decls.push_back({.name = prefix_ + std::move(name), .layer = layer_, .call = std::move(call)});
    return static_cast<SiteId>(list_.decls.size()) - 1;
  }
  Call call_of(Op op, const WeightSource& w) const { return {.op = op, .weight = w.format, .n = w.n, .k = w.k}; }
  // gate, up and down are read by one kernel: each format that is not the first's is a question of its own.
  static void add_others(const MlpSources& m, Call& call);
  void attention(const LayerSources& w, LayerSites& s);
  void indexer(const IndexerSources& w, LayerSites& s);
  void feed_forward(const LayerSources& w, LayerSites& s);

  const ModelConfig& config_;
  const KvGeometry& kv_;
  const Numerics& numerics_;
  std::vector<Format> activations_;
  const int ranks_;
  const int heads_;  // of one rank
  SiteList list_{};
  std::string prefix_{};
  int layer_ = -1;
};

void Declarer::add_others(const MlpSources& m, Call& call) {
  for (const WeightSource* w : {&m.gate_proj, &m.up_proj, &m.down_proj}) {
    const bool known =
        w->format == call.weight || std::any_of(call.others.begin(), call.others.end(),
                                                [&](const OtherWeight& o) { return o.format == w->format; });
    if (!known) call.others.push_back({w->format, w->name});
  }
}

void Declarer::attention(const LayerSources& w, LayerSites& s) {
  s.q_a = weighted("self_attn.q_a_proj", Op::Linear, w.q_a_proj);
  s.q_norm = plain("self_attn.q_a_layernorm", Op::RmsNorm, config_.q_lora_rank);
  s.q_b = weighted("self_attn.q_b_proj", Op::Linear, w.q_b_proj);
  s.q_rope = add("self_attn.q_rope", {.op = Op::Rope, .k = config_.qk_head_dim(), .heads = heads_});
  s.kv_a = weighted("self_attn.kv_a_proj_with_mqa", Op::Linear, w.kv_a_proj_with_mqa);
  s.kv_write = add("self_attn.kv_write", {.op = Op::KvWrite, .kv = kv_.latent, .k = config_.kv_lora_rank});
  if (w.indexer) indexer(*w.indexer, s);
  Call attend = call_of(Op::MlaAttend, w.kv_b_proj);
  attend.kv = kv_.latent;
  attend.heads = heads_;
  attend.topk = config_.index_topk;
  attend.rope = config_.qk_rope_head_dim;
  s.attend = add("self_attn.attend", std::move(attend));
  s.o = weighted("self_attn.o_proj", Op::Linear, w.o_proj);
  s.attention_sum = exchange("self_attn.sum", Op::AllReduce, config_.hidden_size);
}

void Declarer::indexer(const IndexerSources& w, LayerSites& s) {
  const int64_t dim = config_.index_head_dim;
  const int64_t heads = config_.index_n_heads;
  s.wq_b = weighted("self_attn.indexer.wq_b", Op::Linear, w.wq_b);
  s.index_query =
      add("self_attn.indexer.query", {.op = Op::IndexQuery, .index_key = kv_.index_key, .k = dim, .heads = heads});
  s.wk = weighted("self_attn.indexer.wk", Op::Linear, w.wk);
  s.index_key = add("self_attn.indexer.key_write", {.op = Op::IndexKeyWrite, .index_key = kv_.index_key, .k = dim});
  s.weights_proj = weighted("self_attn.indexer.weights_proj", Op::Linear, w.weights_proj);
  s.indexer_logits =
      add("self_attn.indexer.logits", {.op = Op::IndexerLogits, .index_key = kv_.index_key, .k = dim, .heads = heads});
  s.topk = add("self_attn.indexer.topk", {.op = Op::TopK, .topk = config_.index_topk});
}

void Declarer::feed_forward(const LayerSources& w, LayerSites& s) {
  const auto declare_mlp = [&](std::string name, const MlpSources& m) {
    Call call = call_of(Op::Mlp, m.gate_proj);
    add_others(m, call);
    s.mlp = add(std::move(name), std::move(call));
  };
  if (w.mlp) return declare_mlp("mlp", *w.mlp);
  s.router = add(
      "mlp.gate",
      {.op = Op::Router, .weight = w.gate.format, .n = w.gate.n, .k = w.gate.k, .topk = config_.num_experts_per_tok});
  Call moe = call_of(Op::Moe, w.experts.front().gate_proj);
  moe.topk = config_.num_experts_per_tok;
  for (const MlpSources& expert : w.experts) add_others(expert, moe);
  s.moe = add("mlp.experts", std::move(moe));
  if (w.shared_experts) declare_mlp("mlp.shared_experts", *w.shared_experts);
}

void Declarer::layer(int index, const LayerSources& w, bool first_norm_adds) {
  prefix_ = "layers." + std::to_string(index) + ".";
  layer_ = index;
  LayerSites s;
  s.input_norm = plain("input_layernorm", first_norm_adds ? Op::AddRmsNorm : Op::RmsNorm, config_.hidden_size);
  attention(w, s);
  s.post_norm = plain("post_attention_layernorm", Op::AddRmsNorm, config_.hidden_size);
  feed_forward(w, s);
  s.mlp_sum = exchange("mlp.sum", Op::AllReduce, config_.hidden_size);
  list_.ids.layers.push_back(s);
  prefix_.clear();
  layer_ = -1;
}

void Declarer::mtp(const MtpSources& w) {
  const int index = config_.num_hidden_layers;
  layer(index, w.layer, /*first_norm_adds=*/false);
  prefix_ = "layers." + std::to_string(index) + ".";
  layer_ = index;
  list_.ids.enorm = plain("enorm", Op::RmsNorm, config_.hidden_size);
  list_.ids.hnorm = plain("hnorm", Op::RmsNorm, config_.hidden_size);
  list_.ids.eh_proj = weighted("eh_proj", Op::Linear, w.eh_proj);
  list_.ids.draft_set = plain("draft_set", Op::DraftSet, config_.index_topk);
  list_.ids.head_norm = plain("shared_head.norm", Op::AddRmsNorm, config_.hidden_size);
  prefix_.clear();
  layer_ = -1;
}

}  // namespace

SiteList declare_sites(const ModelConfig& config, const WeightMap& map, const KvGeometry& kv, const Numerics& numerics,
                       std::span<const Format> activations, const Ranks& ranks) {
  Declarer d(config, kv, numerics, activations, ranks);
  d.list().ids.embed = d.weighted("embed_tokens", Op::Embed, map.embed_tokens);
  d.list().ids.embed_sum = d.exchange("embed_tokens.sum", Op::AllReduce, config.hidden_size);
  for (size_t i = 0; i < map.layers.size(); ++i) d.layer(static_cast<int>(i), map.layers[i], /*first_norm_adds=*/i > 0);
  ModelSites& ids = d.list().ids;
  ids.final_norm = d.plain("norm", Op::AddRmsNorm, config.hidden_size);
  ids.gather = d.plain("gather_rows", Op::GatherRows, config.hidden_size);
  ids.finite = d.plain("finite_rows", Op::FiniteRows, config.hidden_size);
  ids.lm_head = d.weighted("lm_head", Op::Linear, map.lm_head);
  ids.logits_gather = d.exchange("lm_head.gather", Op::GatherColumns, map.lm_head.n);
  ids.sample = d.plain("sample", Op::Sample, config.vocab_size);
  if (map.mtp) d.mtp(*map.mtp);
  return std::move(d).take();
}

}  // namespace plumb
