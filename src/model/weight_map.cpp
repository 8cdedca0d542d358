#include "model/weight_map.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "model/weight_resolver.h"

namespace plumb {
namespace {

class Mapper {
 public:
  Mapper(const ModelConfig& config, const Checkpoint& checkpoint, const QuantConfig& quant)
      : config_(config), checkpoint_(checkpoint), resolver_(checkpoint, quant) {}
  Result<WeightMap> run();

 private:
  LayerSources layer(int index, bool sparse, bool full);
  void attention(const std::string& prefix, LayerSources& layer);
  IndexerSources indexer(const std::string& prefix);
  MlpSources mlp(const std::string& prefix, int64_t width);
  void experts(const std::string& prefix, LayerSources& layer);
  void stacked_experts(const std::string& prefix, LayerSources& layer);
  void mtp(WeightMap& map);
  void note_unequal_globals(const WeightMap& map);
  bool same_bytes(const std::string& copy, const WeightSource& original) const;

  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  WeightResolver resolver_;
  int surplus_indexers_ = 0;
};

void Mapper::attention(const std::string& prefix, LayerSources& layer) {
  const ModelConfig& c = config_;
  const int64_t heads = c.num_attention_heads, hidden = c.hidden_size, latent = c.kv_lora_rank;
  const std::string p = prefix + "self_attn.";
  layer.q_a_proj = resolver_.linear(p + "q_a_proj", c.q_lora_rank, hidden);
  layer.q_a_layernorm = resolver_.vector(p + "q_a_layernorm.weight", c.q_lora_rank);
  layer.q_b_proj = resolver_.linear(p + "q_b_proj", heads * c.qk_head_dim(), c.q_lora_rank);
  layer.kv_a_proj_with_mqa = resolver_.linear(p + "kv_a_proj_with_mqa", latent + c.qk_rope_head_dim, hidden);
  layer.kv_a_layernorm = resolver_.vector(p + "kv_a_layernorm.weight", latent);
  layer.kv_b_proj = resolver_.linear(p + "kv_b_proj", heads * (c.qk_nope_head_dim + c.v_head_dim), latent);
  layer.o_proj = resolver_.linear(p + "o_proj", hidden, heads * c.v_head_dim);
  if (!c.attention_bias) return;
  layer.q_a_proj_bias = resolver_.vector(p + "q_a_proj.bias", c.q_lora_rank);
  layer.kv_a_proj_bias = resolver_.vector(p + "kv_a_proj_with_mqa.bias", latent + c.qk_rope_head_dim);
  layer.o_proj_bias = resolver_.vector(p + "o_proj.bias", hidden);
}

IndexerSources Mapper::indexer(const std::string& prefix) {
  const ModelConfig& c = config_;
  IndexerSources source;
  source.wq_b =
      resolver_.linear(prefix + "wq_b", static_cast<int64_t>(c.index_n_heads) * c.index_head_dim, c.q_lora_rank);
  source.wk = resolver_.linear(prefix + "wk", c.index_head_dim, c.hidden_size);
  source.k_norm = resolver_.vector(prefix + "k_norm.weight", c.index_head_dim);
  source.k_norm_bias = resolver_.vector(prefix + "k_norm.bias", c.index_head_dim);
  source.weights_proj = resolver_.linear(prefix + "weights_proj", c.index_n_heads, c.hidden_size, Quantisable::Never);
  return source;
}

MlpSources Mapper::mlp(const std::string& prefix, int64_t width) {
  MlpSources source;
  source.gate_proj = resolver_.linear(prefix + "gate_proj", width, config_.hidden_size);
  source.up_proj = resolver_.linear(prefix + "up_proj", width, config_.hidden_size);
  source.down_proj = resolver_.linear(prefix + "down_proj", config_.hidden_size, width);
  return source;
}

// transformers' own form in memory: [experts, 2 * width, hidden] with the gate's rows first, and [experts, hidden,
// width].
void Mapper::stacked_experts(const std::string& prefix, LayerSources& layer) {
  const int64_t count = config_.n_routed_experts, width = config_.moe_intermediate_size, hidden = config_.hidden_size;
  const CheckpointTensor* gate_up = resolver_.stacked(prefix + "gate_up_proj", count, 2 * width, hidden);
  const CheckpointTensor* down = resolver_.stacked(prefix + "down_proj", count, hidden, width);
  if (gate_up == nullptr || down == nullptr) return;
  const auto slice = [](const CheckpointTensor* tensor, int64_t n, int64_t k, int64_t first_row) {
    return WeightSource{.name = tensor->info.name,
                        .format = Format{tensor->info.dtype},
                        .n = n,
                        .k = k,
                        .data = tensor,
                        .row_offset = first_row};
  };
  for (int64_t e = 0; e < count; ++e) {
    layer.experts.push_back({slice(gate_up, width, hidden, e * 2 * width),
                             slice(gate_up, width, hidden, e * 2 * width + width),
                             slice(down, hidden, width, e * hidden)});
  }
}

void Mapper::experts(const std::string& prefix, LayerSources& layer) {
  const ModelConfig& c = config_;
  layer.gate = resolver_.linear(prefix + "gate", c.n_routed_experts, c.hidden_size, Quantisable::Never);
  layer.e_score_correction_bias = resolver_.vector_f32(prefix + "gate.e_score_correction_bias", c.n_routed_experts);
  layer.shared_experts =
      mlp(prefix + "shared_experts.", static_cast<int64_t>(c.n_shared_experts) * c.moe_intermediate_size);
  const std::string p = prefix + "experts.";
  if (resolver_.exists(p + "gate_up_proj") || resolver_.exists(p + "down_proj")) return stacked_experts(p, layer);
  layer.experts.reserve(static_cast<size_t>(c.n_routed_experts));
  for (int e = 0; e < c.n_routed_experts; ++e)
    layer.experts.push_back(mlp(fmt::format("{}{}.", p, e), c.moe_intermediate_size));
}

LayerSources Mapper::layer(int index, bool sparse, bool full) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  LayerSources source;
  source.input_layernorm = resolver_.vector(prefix + "input_layernorm.weight", config_.hidden_size);
  source.post_attention_layernorm = resolver_.vector(prefix + "post_attention_layernorm.weight", config_.hidden_size);
  attention(prefix, source);
  if (full) {
    source.indexer = indexer(prefix + "self_attn.indexer.");
  } else if (resolver_.exists(prefix + "self_attn.indexer.wq_b.weight") ||
             resolver_.exists(prefix + "self_attn.indexer.wk.weight")) {
    // Some exports carry them all the same; the layer uses an earlier layer's selection (model.md 2.1).
    surplus_indexers_ += resolver_.ignore_prefix(prefix + "self_attn.indexer.") > 0 ? 1 : 0;
  }
  if (sparse) {
    experts(prefix + "mlp.", source);
  } else {
    source.mlp = mlp(prefix + "mlp.", config_.intermediate_size);
  }
  return source;
}

// First, middle and last 64 KiB: a copy is equal, a different tensor differs everywhere.
bool Mapper::same_bytes(const std::string& copy, const WeightSource& original) const {
  const CheckpointTensor* other = checkpoint_.find(copy);
  if (other == nullptr || !original || other->data == nullptr) return true;
  const uint64_t bytes = original.data->info.bytes();
  if (other->info.bytes() != bytes || other->info.dtype != original.data->info.dtype) return false;
  const uint64_t window = std::min<uint64_t>(bytes, 65536);
  for (const uint64_t at : {uint64_t{0}, (bytes - window) / 2, bytes - window}) {
    if (std::memcmp(other->data + at, original.data->data + at, window) != 0) return false;
  }
  return true;
}

void Mapper::mtp(WeightMap& map) {
  const int index = config_.num_hidden_layers;
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const bool present =
      resolver_.exists(prefix + "eh_proj.weight") || resolver_.exists(prefix + "eh_proj.weight_packed");
  if (config_.num_nextn_predict_layers == 0 || !present) {
    const int ignored = resolver_.ignore_prefix(prefix);
    if (config_.num_nextn_predict_layers.value_or(0) > 0) {
      resolver_.note(fmt::format(
          "config.json has num_nextn_predict_layers {}, but {}eh_proj.weight is absent: no speculation with the "
          "next-n layer",
          *config_.num_nextn_predict_layers, prefix));
    }
    if (ignored > 0) resolver_.note(fmt::format("{} tensors of {}* are not used", ignored, prefix));
    return;
  }
  const int64_t hidden = config_.hidden_size;
  MtpSources source;
  source.enorm = resolver_.vector(prefix + "enorm.weight", hidden);
  source.hnorm = resolver_.vector(prefix + "hnorm.weight", hidden);
  source.eh_proj = resolver_.linear(prefix + "eh_proj", hidden, 2 * hidden);
  source.shared_head_norm = resolver_.vector(prefix + "shared_head.norm.weight", hidden);
  source.layer = layer(index, /*sparse=*/true, /*full=*/true);
  // DeepSeek-V3 style files repeat embedding and head here; they are the main ones.
  for (const auto& [copy, original] : {std::pair(prefix + "embed_tokens.weight", &map.embed_tokens),
                                       std::pair(prefix + "shared_head.head.weight", &map.lm_head)}) {
    if (!resolver_.ignore(copy)) continue;
    resolver_.note(
        fmt::format("{} is set aside, {} is used{}", copy, original->name,
                    same_bytes(copy, *original) ? "" : " though the two differ: drafts may be accepted less often"));
  }
  map.mtp = std::move(source);
}

void Mapper::note_unequal_globals(const WeightMap& map) {
  int64_t pairs = 0, unequal = 0;
  float ratio = 1;
  const auto look = [&](const MlpSources& mlp) {
    if (mlp.gate_proj.format != kNvfp4 || mlp.up_proj.format != kNvfp4) return;
    ++pairs;
    const float a = mlp.gate_proj.global_scale, b = mlp.up_proj.global_scale;
    if (a != b) ++unequal;
    ratio = std::max({ratio, a / b, b / a});
  };
  const auto look_at_layer = [&](const LayerSources& layer) {
    if (layer.mlp) look(*layer.mlp);
    if (layer.shared_experts) look(*layer.shared_experts);
    std::for_each(layer.experts.begin(), layer.experts.end(), look);
  };
  std::for_each(map.layers.begin(), map.layers.end(), look_at_layer);
  if (map.mtp) look_at_layer(map.mtp->layer);
  if (unequal > 0) {
    resolver_.note(
        fmt::format("{} of {} gate/up pairs have different global scales (up to {:.3g} times); each keeps its own",
                    unequal, pairs, ratio));
  }
}

Result<WeightMap> Mapper::run() {
  WeightMap map;
  const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
  map.embed_tokens = resolver_.linear("model.embed_tokens", vocab, hidden, Quantisable::Never);
  map.norm = resolver_.vector("model.norm.weight", hidden);
  if (config_.tie_word_embeddings) {
    map.lm_head = map.embed_tokens;
    if (resolver_.ignore("lm_head.weight")) {
      if (!same_bytes("lm_head.weight", map.embed_tokens))
        return Error{Code::Corrupt,
                     checkpoint_.folder().string() + ": config.json: tie_word_embeddings is true",
                     "lm_head.weight is there and is not model.embed_tokens.weight: one of the two is wrong",
                     {"tie_word_embeddings false", "a file without lm_head.weight"}};
      resolver_.note("lm_head.weight is set aside: tie_word_embeddings is true");
    }
  } else {
    map.lm_head = resolver_.linear("lm_head", vocab, hidden);
  }
  for (int i = 0; i < config_.num_hidden_layers; ++i) {
    map.layers.push_back(layer(i, config_.is_sparse_mlp(i), config_.is_full_indexer(i)));
  }
  mtp(map);
  if (surplus_indexers_ > 0) {
    resolver_.note(fmt::format("{} shared layers carry indexer tensors; they are not used", surplus_indexers_));
  }
  PLUMB_TRY_STATUS(resolver_.verdict());
  note_unequal_globals(map);
  map.notes = resolver_.take_notes();
  return map;
}

void collect(const WeightSource& source, std::vector<const WeightSource*>& all) {
  if (source) all.push_back(&source);
}

void collect(const MlpSources& mlp, std::vector<const WeightSource*>& all) {
  for (const WeightSource* source : {&mlp.gate_proj, &mlp.up_proj, &mlp.down_proj}) collect(*source, all);
}

void collect(const LayerSources& layer, std::vector<const WeightSource*>& all) {
  for (const WeightSource* source :
       {&layer.input_layernorm, &layer.q_a_proj, &layer.q_a_proj_bias, &layer.q_a_layernorm, &layer.q_b_proj,
        &layer.kv_a_proj_with_mqa, &layer.kv_a_proj_bias, &layer.kv_a_layernorm, &layer.kv_b_proj, &layer.o_proj,
        &layer.o_proj_bias}) {
    collect(*source, all);
  }
  if (layer.indexer) {
    const IndexerSources& x = *layer.indexer;
    for (const WeightSource* source : {&x.wq_b, &x.wk, &x.k_norm, &x.k_norm_bias, &x.weights_proj})
      collect(*source, all);
  }
  collect(layer.post_attention_layernorm, all);
  if (layer.mlp) collect(*layer.mlp, all);
  collect(layer.gate, all);
  collect(layer.e_score_correction_bias, all);
  for (const MlpSources& expert : layer.experts) collect(expert, all);
  if (layer.shared_experts) collect(*layer.shared_experts, all);
}

}  // namespace

std::vector<const WeightSource*> WeightMap::all() const {
  std::vector<const WeightSource*> list;
  collect(embed_tokens, list);
  for (const LayerSources& layer : layers) collect(layer, list);
  collect(norm, list);
  if (lm_head.data != embed_tokens.data) collect(lm_head, list);
  if (mtp) {
    for (const WeightSource* source : {&mtp->enorm, &mtp->hnorm, &mtp->eh_proj, &mtp->shared_head_norm})
      collect(*source, list);
    collect(mtp->layer, list);
  }
  return list;
}

Result<WeightMap> map_weights(const ModelConfig& config, const Checkpoint& checkpoint, const QuantConfig& quant) {
  return Mapper(config, checkpoint, quant).run();
}

}  // namespace plumb
