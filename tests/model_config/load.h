// A model folder from configuration to weight map, as every command does it.
#pragma once

#include <filesystem>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quant_config.h"
#include "model/model_config.h"
#include "model/weight_map.h"

namespace plumb::testing {

struct LoadedModel {
  ModelConfig config{};
  QuantConfig quant{};
  Checkpoint checkpoint;
  WeightMap map{};
};

inline Result<LoadedModel> load_model(const std::filesystem::path& folder) {
  PLUMB_TRY(ModelConfig config, read_model_config(folder));
  PLUMB_TRY(QuantConfig quant, read_quant_config(folder));
  PLUMB_TRY(Checkpoint checkpoint, Checkpoint::open(folder));
  PLUMB_TRY(WeightMap map, map_weights(config, checkpoint, quant));
  return LoadedModel{std::move(config), std::move(quant), std::move(checkpoint), std::move(map)};
}

// The first weight whose values are not what a weight can have, or well.
inline Status check_all_values(const WeightMap& map) {
  for (const WeightSource* source : map.all()) PLUMB_TRY_STATUS(check_weight_values(*source));
  return Ok{};
}

}  // namespace plumb::testing
