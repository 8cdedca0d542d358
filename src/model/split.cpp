#include "model/split.h"

#include <array>
#include <string>

namespace plumb {
namespace {

int64_t divided(int64_t value, int ranks) { return (value + ranks - 1) / ranks; }

bool is_vocabulary(const WeightSource& w) {
  return w.name.find("embed_tokens") != std::string::npos || w.name.find("lm_head") != std::string::npos;
}

// Why `ranks` cannot have a share each; empty: they can.
std::string obstacle(const WeightSource& w, int ranks) {
  const Split split = split_of(w.name);
  if (split == Split::Replicated || is_vocabulary(w)) return {};  // the vocabulary's last share may be smaller
  const int64_t extent = split == Split::Rows ? w.n : w.k;
  const std::string what = w.name + ": " + std::to_string(extent) + (split == Split::Rows ? " rows" : " columns");
  if (extent % ranks != 0) return what + " cannot be divided by " + std::to_string(ranks);
  const int block = split == Split::Rows ? w.format.block_n : w.format.block_k;
  if (block > 1 && extent / ranks % block != 0)
    return what + ", " + std::to_string(extent / ranks) + " for each of " + std::to_string(ranks) +
           " ranks, cut through the scale blocks of " + std::to_string(block) + " in " + w.format.to_string();
  return {};
}

std::string first_obstacle(const ModelConfig& config, const WeightMap& map, int ranks) {
  if (config.num_attention_heads % ranks != 0)
    return "config.json: num_attention_heads " + std::to_string(config.num_attention_heads) + " cannot be divided by " +
           std::to_string(ranks);
  for (const WeightSource* weight : map.all())
    if (std::string found = obstacle(*weight, ranks); !found.empty()) return found;
  return {};
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

WeightShape rank_shape(const WeightSource& weight, int ranks) {
  const Split split = split_of(weight.name);
  return {split == Split::Rows ? divided(weight.n, ranks) : weight.n,
          split == Split::Columns ? divided(weight.k, ranks) : weight.k};
}

Status check_split(const ModelConfig& config, const WeightMap& map, int ranks) {
  if (ranks == 1) return Ok{};
  const std::string why = first_obstacle(config, map, ranks);
  if (why.empty()) return Ok{};
  Error error{Code::Unsupported, "--tp " + std::to_string(ranks) + " cannot be honoured", why, {}};
  for (const int other : {1, 2, 4, 8, 16})
    if (other != ranks && first_obstacle(config, map, other).empty())
      error.works.push_back("--tp " + std::to_string(other));
  return error;
}

ModelConfig rank_config(ModelConfig config, int ranks) {
  config.num_attention_heads = static_cast<int>(divided(config.num_attention_heads, ranks));
  config.vocab_size = static_cast<int>(divided(config.vocab_size, ranks));
  return config;
}

}  // namespace plumb
