#include "model/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/config_reader.h"
#include "checkpoint/json_file.h"
#include "model/rope_config_parse.h"

namespace plumb {
namespace {

using nlohmann::json;

constexpr int kMaxLayers = 4096;
constexpr int kMaxExperts = 65536;

struct Family {
  ModelType type;
  const char* name;
  const char* architecture;
};
constexpr std::array kFamilies{Family{ModelType::GlmMoeDsa, "glm_moe_dsa", "GlmMoeDsaForCausalLM"},
                               Family{ModelType::DeepseekV32, "deepseek_v32", "DeepseekV32ForCausalLM"}};

// Decides what kind of model this is, or refuses it by name; nothing else is looked at before.
const Family* find_family(ConfigReader& config) {
  const std::string model_type = config.string("model_type", std::nullopt);
  std::string architecture;
  if (const json* list = config.get("architectures")) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      config.ill_formed("architectures", "a list of one name");
      return nullptr;
    }
    architecture = list->front().get<std::string>();
  }
  for (const Family& family : kFamilies) {
    if (family.name == model_type && (architecture.empty() || architecture == family.architecture)) return &family;
  }
  config.unsupported(
      fmt::format("architecture '{}' (model_type '{}') is not supported; supported are "
                  "GlmMoeDsaForCausalLM (glm_moe_dsa) and DeepseekV32ForCausalLM (deepseek_v32)",
                  architecture, model_type));
  return nullptr;
}

// Published defaults of the GLM class (model.md 1.3); other families must spell everything out.
std::optional<int> glm(const ModelConfig& c, int value) {
  return c.model_type == ModelType::GlmMoeDsa ? std::optional<int>(value) : std::nullopt;
}

void read_sizes(ConfigReader& r, ModelConfig& c) {
  c.hidden_size = r.integer("hidden_size", 1, glm(c, 6144));
  c.num_hidden_layers = r.integer("num_hidden_layers", 1, glm(c, 78));
  c.vocab_size = r.integer("vocab_size", 1, glm(c, 154880));
  c.max_position_embeddings = r.integer("max_position_embeddings", 1, glm(c, 202752));
  c.num_attention_heads = r.integer("num_attention_heads", 1, glm(c, 64));
  c.kv_lora_rank = r.integer("kv_lora_rank", 1, glm(c, 512));
  c.qk_nope_head_dim = r.integer("qk_nope_head_dim", 1, glm(c, 192));
  c.qk_rope_head_dim = r.integer("qk_rope_head_dim", 1, glm(c, 64));
  c.v_head_dim = r.integer("v_head_dim", 1, glm(c, 256));
  c.intermediate_size = r.integer("intermediate_size", 1, glm(c, 12288));
  c.index_n_heads = r.integer("index_n_heads", 1, glm(c, 32));
  c.index_head_dim = r.integer("index_head_dim", 1, glm(c, 128));
  c.index_topk = r.integer("index_topk", 1, glm(c, 2048));
  if (c.num_hidden_layers > kMaxLayers) r.ill_formed("num_hidden_layers", fmt::format("at most {}", kMaxLayers));
  if (c.qk_rope_head_dim % 2 != 0) r.ill_formed("qk_rope_head_dim", "an even number");
  if (c.qk_rope_head_dim > c.index_head_dim) {
    r.broken(
        fmt::format("'index_head_dim' {} is less than 'qk_rope_head_dim' {}, but an index head has that many rotated "
                    "dimensions",
                    c.index_head_dim, c.qk_rope_head_dim));
  }
  if (r.has_null("q_lora_rank")) {
    r.unsupported("'q_lora_rank' is null: queries without a latent are not supported (the indexer reads the latent)");
  } else {
    c.q_lora_rank = r.integer("q_lora_rank", 1, glm(c, 2048));
  }
  if (const auto head = r.optional_integer("qk_head_dim", 1); head && *head != c.qk_head_dim()) {
    r.broken(fmt::format("'qk_head_dim' is {}, but qk_nope_head_dim + qk_rope_head_dim is {}", *head, c.qk_head_dim()));
  }
  if (const auto heads = r.optional_integer("num_key_value_heads", 1); heads && *heads != c.num_attention_heads) {
    r.note(fmt::format("config.json: 'num_key_value_heads' {} is set aside: the cache has one latent head", *heads));
  }
}

int routed_experts(ConfigReader& r, const ModelConfig& c) {
  std::optional<int> experts;
  for (const char* key : {"n_routed_experts", "num_experts", "num_local_experts"}) {
    const std::optional<int> value = r.optional_integer(key, 1);
    if (value && experts && *value != *experts)
      r.broken(fmt::format("'{}' is {}, but another key says {}", key, *value, *experts));
    if (value) experts = value;
  }
  return experts ? *experts : r.integer("n_routed_experts", 1, glm(c, 256));
}

void read_experts(ConfigReader& r, ModelConfig& c) {
  c.moe_intermediate_size = r.integer("moe_intermediate_size", 1, glm(c, 2048));
  c.n_routed_experts = routed_experts(r, c);
  c.n_shared_experts = r.integer("n_shared_experts", 1, glm(c, 1));
  c.num_experts_per_tok = r.integer("num_experts_per_tok", 1, glm(c, 8));
  c.n_group = r.integer("n_group", 1, glm(c, 1));
  c.topk_group = r.integer("topk_group", 1, glm(c, 1));
  const bool is_glm = c.model_type == ModelType::GlmMoeDsa;
  c.norm_topk_prob = r.boolean("norm_topk_prob", is_glm ? std::optional(true) : std::nullopt);
  c.routed_scaling_factor =
      static_cast<float>(r.number("routed_scaling_factor", is_glm ? std::optional(2.5) : std::nullopt));
  if (!(c.routed_scaling_factor > 0)) r.ill_formed("routed_scaling_factor", "a positive number");
  if (c.n_routed_experts > kMaxExperts) r.ill_formed("n_routed_experts", fmt::format("at most {}", kMaxExperts));
  if (c.n_routed_experts % c.n_group != 0) {
    return r.broken(
        fmt::format("'n_routed_experts' {} is not a multiple of 'n_group' {}", c.n_routed_experts, c.n_group));
  }
  const int in_group = c.n_routed_experts / c.n_group;
  if (c.topk_group > c.n_group) r.broken(fmt::format("'topk_group' {} exceeds 'n_group' {}", c.topk_group, c.n_group));
  if (c.n_group > 1 && in_group < 2) r.broken("a group needs two experts: its score is the sum of its two best");
  if (c.num_experts_per_tok > static_cast<int64_t>(in_group) * std::min(c.topk_group, c.n_group)) {
    r.broken(fmt::format("'num_experts_per_tok' {} exceeds the {} experts in {} groups of {}", c.num_experts_per_tok,
                         static_cast<int64_t>(in_group) * c.topk_group, c.topk_group, in_group));
  }
}

void read_mlp_types(ConfigReader& r, ModelConfig& c) {
  const json* first_dense = r.get("first_k_dense_replace");
  const json* list = r.get("mlp_layer_types");
  const bool counted = first_dense != nullptr || list == nullptr;
  const int dense = counted ? std::min(r.integer("first_k_dense_replace", 0, glm(c, 3)), c.num_hidden_layers) : 0;
  if (list == nullptr) {
    c.mlp_layer_types.assign(static_cast<size_t>(c.num_hidden_layers), MlpType::Sparse);
    std::fill_n(c.mlp_layer_types.begin(), dense, MlpType::Dense);
    return;
  }
  if (!list->is_array() || list->size() != static_cast<size_t>(c.num_hidden_layers)) {
    return r.ill_formed("mlp_layer_types", fmt::format("a list of {} entries, one a layer", c.num_hidden_layers));
  }
  for (const json& item : *list) {
    if (item != "dense" && item != "sparse")
      return r.ill_formed("mlp_layer_types", "'dense' or 'sparse' for each layer");
    c.mlp_layer_types.push_back(item == "dense" ? MlpType::Dense : MlpType::Sparse);
  }
  // The list wins over the count, but must begin as the count says when the file has both.
  const auto sparse = std::find(c.mlp_layer_types.begin(), c.mlp_layer_types.end(), MlpType::Sparse);
  const auto leading = static_cast<int>(sparse - c.mlp_layer_types.begin());
  if (first_dense != nullptr && leading != dense) {
    r.broken(
        fmt::format("'first_k_dense_replace' is {}, but 'mlp_layer_types' begins with {} dense layers; a file that has "
                    "only one of the two, the right one, can be read",
                    dense, leading));
  }
}

using IndexerTypes = std::vector<IndexerType>;

std::optional<IndexerTypes> types_from_list(ConfigReader& r, const char* key, const json& list, int layers) {
  IndexerTypes types;
  const bool letters = list.is_string();
  const std::string text = letters ? list.get<std::string>() : "";
  const size_t length = letters ? text.size() : list.is_array() ? list.size() : 0;
  const std::string expected = fmt::format("one of full and shared for each of {} layers", layers);
  if (length != static_cast<size_t>(layers)) {
    r.ill_formed(key, fmt::format("{}; it has {} entries", expected, length));
    return std::nullopt;
  }
  for (size_t i = 0; i < length; ++i) {
    const bool full = letters ? text[i] == 'F' : list[i] == "full";
    const bool shared = letters ? text[i] == 'S' : list[i] == "shared";
    if (!full && !shared) {
      r.ill_formed(key, expected);
      return std::nullopt;
    }
    types.push_back(full ? IndexerType::Full : IndexerType::Shared);
  }
  return types;
}

IndexerTypes types_from_frequency(int frequency, int offset, int layers) {
  IndexerTypes types;
  for (int i = 0; i < layers; ++i) {
    const bool full = std::max(static_cast<int64_t>(i) - offset + 1, int64_t{0}) % std::max(frequency, 1) == 0;
    types.push_back(full ? IndexerType::Full : IndexerType::Shared);
  }
  return types;
}

// Which layers own an indexer (model.md 1.4): list, else pattern, else frequency and offset.
void read_indexer_types(ConfigReader& r, ModelConfig& c) {
  const auto frequency = r.optional_integer("index_topk_freq", INT32_MIN);
  const auto offset = r.optional_integer("index_skip_topk_offset", INT32_MIN);
  const IndexerTypes by_frequency =
      types_from_frequency(frequency.value_or(1), offset.value_or(2), c.num_hidden_layers);
  const json* list = r.get("indexer_types");
  const json* pattern = r.get("index_topk_pattern");
  std::optional<IndexerTypes> by_list, by_pattern;
  if (list != nullptr && !list->is_array()) return r.ill_formed("indexer_types", "a list");
  if (list != nullptr) by_list = types_from_list(r, "indexer_types", *list, c.num_hidden_layers);
  if (pattern != nullptr) by_pattern = types_from_list(r, "index_topk_pattern", *pattern, c.num_hidden_layers);
  if (by_list && by_pattern && *by_list != *by_pattern) r.broken("'indexer_types' and 'index_topk_pattern' disagree");
  if (by_list && frequency && *by_list != by_frequency) {
    r.broken(fmt::format("'indexer_types' disagrees with 'index_topk_freq' {} and 'index_skip_topk_offset' {}",
                         *frequency, offset.value_or(2)));
  }
  c.indexer_types = by_list ? *by_list : by_pattern ? *by_pattern : by_frequency;
  if (c.indexer_types.front() != IndexerType::Full) {
    r.broken("layer 0 is 'shared', but there is no full layer before it whose selection it could use");
  }
}

// Keys whose only known value is built in: anything else is another model.
void check_fixed(ConfigReader& r) {
  const std::array<std::pair<const char*, const char*>, 4> fixed{{{"scoring_func", "sigmoid"},
                                                                  {"topk_method", "noaux_tc"},
                                                                  {"hidden_act", "silu"},
                                                                  {"moe_router_dtype", "float32"}}};
  for (const auto& [key, value] : fixed) {
    const json* found = r.get(key);
    if (found != nullptr && *found != value) {
      r.unsupported(fmt::format("'{}' is {}; supported is \"{}\"", key, ConfigReader::shown(*found), value));
    }
  }
  if (const json* frequency = r.get("moe_layer_freq"); frequency != nullptr && *frequency != 1) {
    r.unsupported(fmt::format("'moe_layer_freq' is {}; supported is 1", ConfigReader::shown(*frequency)));
  }
  if (r.optional_boolean("mlp_bias").value_or(false))
    r.unsupported("'mlp_bias' is true; MLPs with bias are not supported");
  if (const json* part = r.get("partial_rotary_factor"); part != nullptr && *part != 1) {
    r.unsupported(fmt::format("'partial_rotary_factor' is {}; supported is 1", ConfigReader::shown(*part)));
  }
}

void read_tokens(ConfigReader& r, ModelConfig& c) {
  c.eos_token_ids = r.token_ids("eos_token_id");
  if (r.get("eos_token_id") == nullptr) {
    c.eos_token_ids = {1};
    r.note("config.json: 'eos_token_id' is absent, 1 taken (the published default)");
  }
  for (const int id : c.eos_token_ids) {
    if (id >= c.vocab_size) r.ill_formed("eos_token_id", fmt::format("ids below vocab_size {}", c.vocab_size));
  }
  // Neither is ever added to a prompt, so a value outside the vocabulary (-1 for "none") is harmless.
  const auto harmless = [&](const char* key) -> std::optional<int> {
    const std::optional<int> id = r.optional_integer(key, -1);
    return id && *id >= 0 && *id < c.vocab_size ? id : std::nullopt;
  };
  c.bos_token_id = harmless("bos_token_id");
  c.pad_token_id = harmless("pad_token_id");
}

void read_rest(ConfigReader& r, ModelConfig& c) {
  const bool is_glm = c.model_type == ModelType::GlmMoeDsa;
  c.rms_norm_eps = static_cast<float>(r.number("rms_norm_eps", is_glm ? std::optional(1e-5) : std::nullopt));
  if (!(c.rms_norm_eps > 0)) r.ill_formed("rms_norm_eps", "a positive number");
  c.rope = parse_rope(r);
  r.quiet(true);  // files usually leave these out, and their defaults are what every published model has
  c.rope_interleave = r.boolean("rope_interleave", true);
  c.indexer_rope_interleave = r.boolean("indexer_rope_interleave", is_glm);
  c.attention_bias = r.boolean("attention_bias", false);
  c.tie_word_embeddings = r.boolean("tie_word_embeddings", false);
  c.index_share_for_mtp_iteration = r.boolean("index_share_for_mtp_iteration", false);
  c.num_nextn_predict_layers = r.optional_integer("num_nextn_predict_layers", 0);
  if (c.num_nextn_predict_layers.value_or(0) > 1) {
    r.unsupported(fmt::format("'num_nextn_predict_layers' is {}; at most 1 is supported", *c.num_nextn_predict_layers));
  }
  if (!c.rope_interleave) r.note("config.json: 'rope_interleave' is false: half-split rotation in attention");
}

// No effect on inference, whatever they hold.
constexpr std::array kNeutral{"dtype",
                              "torch_dtype",
                              "transformers_version",
                              "attention_dropout",
                              "initializer_range",
                              "ep_size",
                              "pretraining_tp",
                              "use_cache",
                              "head_dim",
                              "layer_types",
                              "aux_loss_alpha",
                              "seq_aux",
                              "quantization_config",
                              "compression_config",
                              "_name_or_path",
                              "_attn_implementation",
                              "_attn_implementation_autoset",
                              "auto_map",
                              "return_dict",
                              "id2label",
                              "label2id",
                              "output_hidden_states",
                              "output_attentions",
                              "tokenizer_class",
                              "is_encoder_decoder",
                              "router_aux_loss_coef",
                              "output_router_logits",
                              "sep_token_id",
                              "cls_token_id",
                              "model_max_length"};

// Families of keys that change the mathematics in the models that have them.
constexpr std::array kChanging{"rope_",   "rotary",      "partial_", "sliding_",  "attention_", "attn_",
                               "logit",   "final_logit", "query_",   "scale_",    "scaling",    "index",
                               "moe_",    "topk_",       "router_",  "qk_",       "kv_",        "q_",
                               "v_head",  "mlp_",        "expert",   "n_group",   "n_shared",   "num_",
                               "softcap", "mscale",      "yarn",     "residual_", "embedding_", "norm_"};

bool may_change_mathematics(std::string_view key) {
  if (key.find("_norm") != std::string_view::npos || key.find("softcap") != std::string_view::npos ||
      key.find("window") != std::string_view::npos || key.find("multiplier") != std::string_view::npos) {
    return true;
  }
  return std::any_of(kChanging.begin(), kChanging.end(), [&](const char* prefix) { return key.starts_with(prefix); });
}

void sort_out_other_keys(ConfigReader& r, const json& config, ModelConfig& c) {
  for (const auto& [key, value] : config.items()) {
    if (r.known().contains(key) || value.is_null()) continue;
    if (std::find(kNeutral.begin(), kNeutral.end(), std::string_view(key)) != kNeutral.end()) continue;
    if (may_change_mathematics(key) && value != false) {
      r.unsupported(fmt::format("'{}' is {}: not known here, and keys like it change the mathematics", key,
                                ConfigReader::shown(value)));
    } else {
      c.unknown_keys.push_back(key);
    }
  }
  if (!c.unknown_keys.empty()) {
    r.note(fmt::format("config.json: keys without a known meaning: {}", fmt::join(c.unknown_keys, ", ")));
  }
}

}  // namespace

float ModelConfig::softmax_scale() const {
  return static_cast<float>(std::pow(static_cast<double>(qk_head_dim()), -0.5) * rope_softmax_factor(rope));
}

const char* ModelConfig::model_type_name() const {
  return model_type == ModelType::GlmMoeDsa ? "glm_moe_dsa" : "deepseek_v32";
}

Result<ModelConfig> parse_model_config(const json& config) {
  if (!config.is_object()) return Error{Code::Corrupt, "config.json: is not a JSON object", "", {}};
  ConfigReader reader(config, "config.json");
  const Family* family = find_family(reader);
  if (family == nullptr) return reader.error();
  ModelConfig c;
  c.model_type = family->type;
  read_sizes(reader, c);
  read_experts(reader, c);
  check_fixed(reader);
  read_tokens(reader, c);
  read_rest(reader, c);
  if (!reader.ok()) return reader.error();  // the lists below have one entry a layer
  read_mlp_types(reader, c);
  read_indexer_types(reader, c);
  sort_out_other_keys(reader, config, c);
  if (!reader.ok()) return reader.error();
  c.notes = reader.notes();
  return c;
}

Result<ModelConfig> read_model_config(const std::filesystem::path& folder) {
  PLUMB_TRY(const json config, read_json(folder / "config.json", {.depth = 32, .bytes = 16u << 20}));
  auto parsed = parse_model_config(config);
  if (!parsed) return std::move(parsed).error().in(folder.string());
  return parsed;
}

}  // namespace plumb
