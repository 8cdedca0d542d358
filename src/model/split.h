// How a model is divided over ranks (model.md 2.4), the one place that knows: heads, expert widths and the vocabulary
// are divided, or experts are dealt out whole; the latents, the indexer and the router are computed alike on every
// rank.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "model/model_config.h"
#include "model/weight_map.h"

namespace plumb {

struct Ranks {
  int count = 1;
  bool whole_experts = false;  // a rank holds some routed experts whole, instead of a slice of each
};

enum class Split : uint8_t {
  Replicated,
  Rows,     // outputs: q_b, kv_b by heads; gate and up by width; embedding and head by vocabulary
  Columns,  // inputs: o by heads, down by width; partial sums are added over the ranks
};
// By the weight's name in the checkpoint.
Split split_of(std::string_view name);

// Refuses numbers of ranks that do not divide heads, widths and experts, or that cut through scale blocks; names the
// tensor and the numbers that work.
Status check_split(const ModelConfig& config, const WeightMap& map, const Ranks& ranks);

// What one rank reads of the checkpoint: every weight's n and k are the share's, and encode_source gives its bytes
// alone. Rank 0's share of the vocabulary is the largest; all others are equal. `ranks` must pass check_split.
WeightMap share_of(WeightMap map, const Ranks& ranks, int rank);

// Routed experts of a layer that come before the rank's own; 0 where it has a slice of each.
int first_expert_of(const ModelConfig& config, const Ranks& ranks, int rank);

}  // namespace plumb
