// Which tensors of a checkpoint are which weights of the model, and in what format (model.md section 2, formats.md
// sections 2, 3, 5). The format is decided from the tensors present and then held against the quantisation metadata.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quant_config.h"
#include "model/model_config.h"
#include "tensor/dequant.h"
#include "tensor/format.h"

namespace plumb {

// One weight: a matrix [n, k], or a vector of n elements (k == 1). Points into the Checkpoint.
struct WeightSource {
  std::string name{};  // checkpoint name of the data tensor: "model.layers.3.mlp.experts.7.up_proj.weight"
  Format format{};
  int64_t n = 0;
  int64_t k = 0;
  const CheckpointTensor* data = nullptr;    // nullptr: this model has no such weight
  const CheckpointTensor* scale = nullptr;   // F32, BF16, F8_E8M0, U8 or F8_E4M3; see encode_source
  const CheckpointTensor* global = nullptr;  // weight_scale_2 or weight_global_scale
  const CheckpointTensor* input = nullptr;   // input_scale or input_global_scale
  float global_scale = 1;  // multiplies, whichever way the file has it; 1 if the checkpoint has no data
  float input_scale = 1;   // multiplies to decode activations (amax / (6 * 448) for NVFP4, amax / 448 for FP8)
  bool has_input_scale = false;
  bool scale_is_pow2 = false;  // every block scale is a power of two (looked at when there is data)
  // The part of `data`, seen as [rows, file_k], that this weight is: an expert of a stack, or one rank's share.
  int64_t row_offset = 0, column_offset = 0;
  int64_t file_k = 0;  // 0: k

  explicit operator bool() const { return data != nullptr; }
  int64_t columns_in_file() const { return file_k > 0 ? file_k : k; }
  bool part_of_rows() const { return columns_in_file() != k; }  // such a part lies in the file with gaps
};

struct MlpSources {
  WeightSource gate_proj{};  // [intermediate, hidden]
  WeightSource up_proj{};    // [intermediate, hidden]
  WeightSource down_proj{};  // [hidden, intermediate]
};

struct IndexerSources {
  WeightSource wq_b{};          // [index_n_heads * index_head_dim, q_lora_rank]
  WeightSource wk{};            // [index_head_dim, hidden]
  WeightSource k_norm{};        // [index_head_dim]
  WeightSource k_norm_bias{};   // [index_head_dim]
  WeightSource weights_proj{};  // [index_n_heads, hidden]
};

struct LayerSources {
  WeightSource input_layernorm{};           // [hidden]
  WeightSource post_attention_layernorm{};  // [hidden]
  WeightSource q_a_proj{};                  // [q_lora_rank, hidden]
  WeightSource q_a_proj_bias{};             // [q_lora_rank], only with attention_bias
  WeightSource q_a_layernorm{};             // [q_lora_rank]
  WeightSource q_b_proj{};                  // [heads * qk_head_dim, q_lora_rank]
  WeightSource kv_a_proj_with_mqa{};        // [kv_lora_rank + qk_rope_head_dim, hidden]
  WeightSource kv_a_proj_bias{};            // [kv_lora_rank + qk_rope_head_dim], only with attention_bias
  WeightSource kv_a_layernorm{};            // [kv_lora_rank]
  WeightSource kv_b_proj{};                 // [heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank]
  WeightSource o_proj{};                    // [hidden, heads * v_head_dim]
  WeightSource o_proj_bias{};               // [hidden], only with attention_bias
  std::optional<IndexerSources> indexer{};  // full layers
  std::optional<MlpSources> mlp{};          // dense layers
  // sparse layers:
  WeightSource gate{};                         // router [n_routed_experts, hidden]
  WeightSource e_score_correction_bias{};      // [n_routed_experts], F32
  std::vector<MlpSources> experts{};           // [n_routed_experts]
  std::optional<MlpSources> shared_experts{};  // width n_shared_experts * moe_intermediate_size
};

struct MtpSources {
  WeightSource enorm{};             // [hidden]
  WeightSource hnorm{};             // [hidden]
  WeightSource eh_proj{};           // [hidden, 2 * hidden]; columns: embedding first, hidden second
  WeightSource shared_head_norm{};  // [hidden]
  LayerSources layer{};             // a sparse, full layer
};

struct WeightMap {
  WeightSource embed_tokens{};  // [vocab, hidden]
  WeightSource norm{};          // [hidden]
  WeightSource lm_head{};       // [vocab, hidden]; the embedding itself when tied
  std::vector<LayerSources> layers{};
  std::optional<MtpSources> mtp{};   // absent: no speculation
  std::vector<std::string> notes{};  // for the plan

  // Every weight, in order of layers.
  std::vector<const WeightSource*> all() const;
};

// All missing, surplus, ill-shaped and contradicting tensors are in one error.
Result<WeightMap> map_weights(const ModelConfig& config, const Checkpoint& checkpoint, const QuantConfig& quant);

// The bytes of a weight in the canonical form of its Format: scales as F32, E8M0 bytes or E4M3 bytes. Scales stored in
// another type of the same values (BF16, U8, powers of two as F32 under ue8m0) are converted, exactly, into
// `scale_copy`, which the matrix then points to. Needs a checkpoint with data.
struct EncodedSource {
  EncodedMatrix matrix{};
  std::vector<std::byte> scale_copy{};
  std::vector<std::byte> data_copy{};  // of a weight that is some columns of its tensor: put together without gaps
};
EncodedSource encode_source(const WeightSource& source);

// Load-time invariants of formats.md section 5 on the values: scales finite and > 0, no NaN code, magnitudes plausible.
Status check_weight_values(const WeightSource& source);

}  // namespace plumb
