// A model's config.json, read strictly; names as in the file (model.md section 1).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "model/rope_config.h"

namespace plumb {

enum class ModelType : uint8_t { GlmMoeDsa, DeepseekV32 };
enum class MlpType : uint8_t { Dense, Sparse };
enum class IndexerType : uint8_t { Full, Shared };  // Shared: uses the selection of the nearest full layer before it

struct ModelConfig {
  ModelType model_type = ModelType::GlmMoeDsa;
  int hidden_size = 0;
  int num_hidden_layers = 0;
  int vocab_size = 0;
  int max_position_embeddings = 0;
  // attention
  int num_attention_heads = 0;
  int q_lora_rank = 0;
  int kv_lora_rank = 0;
  int qk_nope_head_dim = 0;
  int qk_rope_head_dim = 0;
  int v_head_dim = 0;
  bool attention_bias = false;
  RopeSpec rope{};
  bool rope_interleave = true;
  // sparse attention
  int index_n_heads = 0;
  int index_head_dim = 0;
  int index_topk = 0;
  bool indexer_rope_interleave = true;
  std::vector<IndexerType> indexer_types{};  // [num_hidden_layers], resolved from whichever key the file has
  bool index_share_for_mtp_iteration = false;
  // MLP and experts
  int intermediate_size = 0;
  int moe_intermediate_size = 0;
  int n_routed_experts = 0;
  int n_shared_experts = 0;
  int num_experts_per_tok = 0;
  int n_group = 1;
  int topk_group = 1;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1;
  std::vector<MlpType> mlp_layer_types{};  // [num_hidden_layers]
  // the rest
  float rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  std::optional<int> num_nextn_predict_layers{};  // absent in the file: the tensors decide
  std::optional<int> bos_token_id{};              // never prepended
  std::vector<int> eos_token_ids{};
  std::optional<int> pad_token_id{};

  std::vector<std::string> notes{};         // defaults taken and keys set aside, for the plan
  std::vector<std::string> unknown_keys{};  // keys without a known meaning that cannot change the mathematics, sorted

  int qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  // Multiplies attention scores: qk_head_dim^-1/2 times YaRN's factor.
  float softmax_scale() const;
  bool is_full_indexer(int layer) const { return indexer_types[static_cast<size_t>(layer)] == IndexerType::Full; }
  bool is_sparse_mlp(int layer) const { return mlp_layer_types[static_cast<size_t>(layer)] == MlpType::Sparse; }
  const char* model_type_name() const;  // "glm_moe_dsa" or "deepseek_v32"
};

Result<ModelConfig> parse_model_config(const nlohmann::json& config);
Result<ModelConfig> read_model_config(const std::filesystem::path& folder);

// generation_config.json: the checkpoint's wishes for sampling. All absent when there is no such file.
struct GenerationConfig {
  std::optional<float> temperature{};
  std::optional<float> top_p{};
  std::optional<int> top_k{};
  std::optional<float> min_p{};
  std::optional<float> repetition_penalty{};
  std::optional<bool> do_sample{};
  std::vector<int> eos_token_ids{};
  std::optional<int> pad_token_id{};
  std::optional<int> max_new_tokens{};
  std::vector<std::string> notes{};
};

Result<GenerationConfig> parse_generation_config(const nlohmann::json& config);
Result<GenerationConfig> read_generation_config(const std::filesystem::path& folder);

}  // namespace plumb
