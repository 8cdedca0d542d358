// How tensor parallelism divides a model over ranks (model.md 2.4): heads and expert widths are divided, the latents,
// the indexer and the router are computed alike on every rank.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "model/model_config.h"
#include "model/weight_map.h"

namespace plumb {

enum class Split : uint8_t {
  Replicated,
  Rows,     // outputs: q_b, kv_b by heads; gate and up by width; embedding and head by vocabulary
  Columns,  // inputs: o by heads, down by width; partial sums are added over the ranks
};
// By the weight's name in the checkpoint.
Split split_of(std::string_view name);

struct WeightShape {
  int64_t n = 0, k = 0;
};
// The largest rank's share.
WeightShape rank_shape(const WeightSource& weight, int ranks);

// Refuses numbers of ranks that do not divide heads and widths, or that cut through scale blocks; names the tensor and
// the numbers that work.
Status check_split(const ModelConfig& config, const WeightMap& map, int ranks);

// Sizes of what one rank computes: heads and vocabulary divided.
ModelConfig rank_config(ModelConfig config, int ranks);

}  // namespace plumb
