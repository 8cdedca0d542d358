// The plan of a whole model: cache formats, numeric choices, kernels of every place, and what fits into memory. Needs
// headers only, no weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/quant_config.h"
#include "model/model.h"

namespace plumb {

// "auto" leaves the choice to the plan. By option name, `sources` says where a value came from ("kv" -> "PLUMB_KV") and
// `asked` what was written there, which other flags may have made something else of ("mtp" of "draft_tokens"); options
// that are in neither are defaults.
struct ModelPlanOptions {
  std::string backend = "auto";                  // auto | cpu | cuda | reference
  std::string kv = "auto";                       // auto | f32 | bf16 | fp8
  std::string index_keys = "auto";               // auto | f32 | bf16 | fp8
  std::string numeric_profile = "transformers";  // transformers | engine
  std::string activations = "auto";              // auto | f32 | bf16
  std::string isa = "auto";                      // auto | generic | avx2 | avx512 | avx512bf16: highest to use
  std::string mtp = "auto";                      // auto | on | off
  std::vector<std::pair<std::string, std::string>> pinned{};  // --kernel op=name or place=name
  bool deterministic = false;
  int tp = 1;                         // ranks that share the model by tensor parallelism
  bool ep = false;                    // each of them holds whole routed experts
  double memory_fraction = 0;         // of the device's memory that may be planned; 0: what is usual for its kind
  std::string quantization = "auto";  // what the checkpoint must be: see check_quantization in model_plan.cpp
  int draft_tokens = 0;               // drafted in a round; decides the rows of a verifying step
  int max_rows = 512;                 // rows of one step
  int max_logit_rows = 0;             // rows of one step whose logits are wanted; 0: enough for every sequence's decode
  int max_sequences = 16;             // of one step
  int max_context = 0;                // tokens of one sequence; 0: the model's own, or what fits
  int64_t pages = 0;                  // of the KV cache; 0: enough for the sequences, or what fits
  int page_tokens = 64;
  std::map<std::string, std::string> sources{}, asked{};
};

struct PlanInput {
  const ModelConfig& config;
  const WeightMap& map;
  const QuantConfig& quant;
  const Registry& registry;
  const DeviceInfo& device;
  int64_t checkpoint_bytes = 0;  // of tensor data in its files
};

inline Ranks ranks_of(const ModelPlanOptions& options) { return {.count = options.tp, .whole_experts = options.ep}; }

struct PlannedModel {
  Plan plan{};
  ModelSites sites{};
  KvGeometry kv{};
  Numerics numerics{};
  double latent_norm_eps = 1e-6;
  bool with_mtp = false;
  ForwardLimits limits{};
  int max_context = 0;
  int64_t pages = 0;
};

// Applies the `mtp` option: "off" drops the layer from the map, "on" demands it. Call before plan_model.
Status choose_mtp(std::string_view asked, WeightMap& map);

// The cache's formats, which `kv`, `index_keys`, the backend and the numeric profile decide.
KvGeometry cache_geometry(const ModelConfig& config, const ModelPlanOptions& options);

// Errors: Usage for values that do not exist; Unsupported (exit code 2) for wishes that cannot be honoured, with what
// can.
Result<PlannedModel> plan_model(const PlanInput& input, const ModelPlanOptions& options);

}  // namespace plumb
