#include "model/split.h"

#include <algorithm>
#include <array>
#include <string>

namespace plumb {
namespace {

bool is_vocabulary(const WeightSource& w) {
  return w.name.find("embed_tokens") != std::string::npos || w.name.find("lm_head") != std::string::npos;
}
bool is_routed_expert(std::string_view name) { return name.find(".mlp.experts.") != std::string_view::npos; }

// Rows of a vocabulary's shares but the last, which may be smaller.
int64_t vocabulary_share(const WeightSource& w, int ranks) {
  const int64_t block = std::max(w.format.block_n, 1);
  const int64_t share = (w.n + ranks - 1) / ranks;
  return (share + block - 1) / block * block;
}

// Why `ranks` cannot have a share each; empty: they can.
std::string obstacle(const WeightSource& w, const Ranks& ranks) {
  const Split split = split_of(w.name);
  if (split == Split::Replicated || (ranks.whole_experts && is_routed_expert(w.name))) return {};
  const int64_t extent = split == Split::Rows ? w.n : w.k;
  const std::string what = w.name + ": " + std::to_string(extent) + (split == Split::Rows ? " rows" : " columns");
  const std::string count = std::to_string(ranks.count);
  if (is_vocabulary(w)) {
    if (vocabulary_share(w, ranks.count) * (ranks.count - 1) < w.n) return {};
    return what + " in blocks of " + std::to_string(w.format.block_n) + " leave nothing for the last of " + count +
           " ranks";
  }
  if (extent % ranks.count != 0) return what + " cannot be divided by " + count;
  const int block = split == Split::Rows ? w.format.block_n : w.format.block_k;
  if (block > 1 && extent / ranks.count % block != 0)
    return what + ", " + std::to_string(extent / ranks.count) + " for each of " + count +
           " ranks, cut through the scale blocks of " + std::to_string(block) + " in " + w.format.to_string();
  return {};
}

std::string first_obstacle(const ModelConfig& config, const WeightMap& map, const Ranks& ranks) {
  const auto undivided = [&](const char* name, int value) {
    return std::string("config.json: ") + name + " " + std::to_string(value) + " cannot be divided by " +
           std::to_string(ranks.count);
  };
  if (config.num_attention_heads % ranks.count != 0)
    return undivided("num_attention_heads", config.num_attention_heads);
  if (ranks.whole_experts && config.n_routed_experts % ranks.count != 0)
    return undivided("n_routed_experts", config.n_routed_experts);
  for (const WeightSource* weight : map.all())
    if (std::string found = obstacle(*weight, ranks); !found.empty()) return found;
  return {};
}

// Cuts one weight down to a rank's share.
class Cutter {
 public:
  Cutter(const Ranks& ranks, int rank) : ranks_(ranks), rank_(rank) {}

  void cut(WeightSource& w) const;
  void cut(MlpSources& mlp) const {
    for (WeightSource* w : {&mlp.gate_proj, &mlp.up_proj, &mlp.down_proj}) cut(*w);
  }
  void cut(LayerSources& layer) const;

 private:
  const Ranks& ranks_;
  const int rank_;
};

void Cutter::cut(WeightSource& w) const {
  if (!w) return;
  const Split split = split_of(w.name);
  if (split == Split::Rows) {
    const int64_t share = is_vocabulary(w) ? vocabulary_share(w, ranks_.count) : w.n / ranks_.count;
    w.row_offset += share * rank_;
    w.n = std::min(share, w.n - share * rank_);
  } else if (split == Split::Columns) {
    w.file_k = w.columns_in_file();
    w.k /= ranks_.count;
    w.column_offset += w.k * rank_;
  }
}

void Cutter::cut(LayerSources& layer) const {
  for (WeightSource* w : {&layer.q_b_proj, &layer.kv_b_proj, &layer.o_proj}) cut(*w);
  if (rank_ > 0) layer.o_proj_bias = {};  // a bias is added once
  if (layer.mlp) cut(*layer.mlp);
  if (layer.shared_experts) cut(*layer.shared_experts);
  if (!ranks_.whole_experts) {
    for (MlpSources& expert : layer.experts) cut(expert);
    return;
  }
  const auto each = static_cast<std::ptrdiff_t>(layer.experts.size()) / ranks_.count;
  layer.experts = {layer.experts.begin() + each * rank_, layer.experts.begin() + each * (rank_ + 1)};
}

std::string asked(const Ranks& ranks) {
  return "--tp " + std::to_string(ranks.count) + (ranks.whole_experts ? " --expert-parallel" : "");
}

}  // namespace

Split split_of(std::string_view name) {
  // In this order: "gate_up_proj" and "o_proj" are endings of no other name here.
  constexpr std::array<std::pair<std::string_view, Split>, 8> kSplits{{{".q_b_proj.", Split::Rows},
                                                                       {".kv_b_proj.", Split::Rows},
                                                                       {".o_proj.weight", Split::Columns},
                                                                       {".gate_proj.", Split::Rows},
                                                                       {".up_proj.", Split::Rows},
                                                                       {"gate_up_proj", Split::Rows},
                                                                       {"down_proj", Split::Columns},
                                                                       {"lm_head.", Split::Rows}}};
  for (const auto& [part, split] : kSplits)
    if (name.find(part) != std::string_view::npos) return split;
  return name.find("embed_tokens.") != std::string_view::npos ? Split::Rows : Split::Replicated;
}

Status check_split(const ModelConfig& config, const WeightMap& map, const Ranks& ranks) {
  if (ranks.count == 1) return Ok{};
  const std::string why = first_obstacle(config, map, ranks);
  if (why.empty()) return Ok{};
  Error error{Code::Unsupported, asked(ranks) + " cannot be honoured", why, {}};
  for (const bool whole : {ranks.whole_experts, !ranks.whole_experts}) {
    for (const int other : {1, 2, 4, 8, 16}) {
      const Ranks instead{.count = other, .whole_experts = whole && other > 1};
      if (instead.whole_experts != whole || (other == ranks.count && whole == ranks.whole_experts)) continue;
      if (whole != ranks.whole_experts && other != ranks.count) continue;  // the other way of dividing, as many ranks
      if (first_obstacle(config, map, instead).empty()) error.works.push_back(asked(instead));
    }
  }
  return error;
}

WeightMap share_of(WeightMap map, const Ranks& ranks, int rank) {
  if (ranks.count == 1) return map;
  const Cutter cutter(ranks, rank);
  cutter.cut(map.embed_tokens);
  cutter.cut(map.lm_head);
  for (LayerSources& layer : map.layers) cutter.cut(layer);
  if (map.mtp) cutter.cut(map.mtp->layer);
  return map;
}

int first_expert_of(const ModelConfig& config, const Ranks& ranks, int rank) {
  return ranks.whole_experts ? config.n_routed_experts / ranks.count * rank : 0;
}

}  // namespace plumb
