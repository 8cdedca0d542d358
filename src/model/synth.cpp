#include "model/synth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/thread_pool.h"
#include "checkpoint/encode_tensors.h"
#include "checkpoint/json_file.h"
#include "checkpoint/quantize.h"
#include "checkpoint/sharded_writer.h"
#include "model/model_config.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

using nlohmann::json;

struct NamedFormat {
  const char* name;
  SynthFormat format;
};
constexpr std::array kFormats{NamedFormat{"bf16", SynthFormat::Bf16},
                              NamedFormat{"fp8", SynthFormat::Fp8},
                              NamedFormat{"fp8-ue8m0", SynthFormat::Fp8Ue8m0},
                              NamedFormat{"fp8-tensor", SynthFormat::Fp8Tensor},
                              NamedFormat{"ct-fp8-block", SynthFormat::Fp8BlockCompressed},
                              NamedFormat{"nvfp4", SynthFormat::Nvfp4},
                              NamedFormat{"ct-nvfp4", SynthFormat::Nvfp4Compressed}};

Encoding encoding_of(SynthFormat format) {
  switch (format) {
    case SynthFormat::Bf16:
      return Encoding::Bf16;
    case SynthFormat::Fp8:
      return Encoding::Fp8Block;
    case SynthFormat::Fp8Ue8m0:
      return Encoding::Fp8BlockUe8m0;
    case SynthFormat::Fp8Tensor:
      return Encoding::Fp8Tensor;
    case SynthFormat::Fp8BlockCompressed:
      return Encoding::Fp8BlockCompressed;
    case SynthFormat::Nvfp4:
      return Encoding::Nvfp4;
    case SynthFormat::Nvfp4Compressed:
      return Encoding::Nvfp4Compressed;
  }
  return Encoding::Bf16;
}

bool is_nvfp4(SynthFormat format) { return format == SynthFormat::Nvfp4 || format == SynthFormat::Nvfp4Compressed; }

// Value number `index` of a tensor, a function of (key, index) alone: near-normal (sum of four bytes of a 32-bit hash,
// no branch and no 64-bit product, so that the loop vectorises), one in 1,024 four times as large, as trained weights
// have outliers.
inline float random_value(uint32_t key, uint64_t index) {
  uint32_t x = (static_cast<uint32_t>(index) * 0x9e3779b9u) ^ key ^ (static_cast<uint32_t>(index >> 32) * 0x85ebca6bu);
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x = (x ^ (x >> 15)) * 0xd35a2d97u;
  x ^= x >> 15;
  const uint32_t sum = (x & 255u) + ((x >> 8) & 255u) + ((x >> 16) & 255u) + (x >> 24);
  constexpr float kUnit = 1.0f / 147.8f;  // standard deviation of the sum
  const float value = (static_cast<float>(static_cast<int32_t>(sum)) - 510.0f) * kUnit;
  return (x * 0x9e3779b9u) >> 22 == 0 ? value * 4.0f : value;
}

struct Random {
  uint32_t key = 0;
  float mean = 0;
  float deviation = 1;
};

Random random_of(uint64_t seed, std::string_view name, float mean, float deviation) {
  const uint64_t hash = Hash64().add(seed).add(name).value();
  // Tensors of one kind differ in size by some ten per cent.
  const float spread = 0.8f + 0.4f * static_cast<float>((hash >> 40) & 0xffff) / 65536.0f;
  return {static_cast<uint32_t>(hash), mean, deviation * spread};
}

RowSource rows_of(const Random& random, int64_t n, int64_t k) {
  return {n, k, [random, k](int64_t first, int64_t count, float* out) {
            const uint64_t begin = static_cast<uint64_t>(first) * static_cast<uint64_t>(k);
            const int64_t total = count * k;
            for (int64_t i = 0; i < total; ++i) {
              out[i] = round_bf16(random.mean +
                                  random.deviation * random_value(random.key, begin + static_cast<uint64_t>(i)));
            }
          }};
}

// Lists the tensors of a model (model.md 2.1) as producers.
class Builder {
 public:
  // `pool` is null when only headers are wanted.
  Builder(const SynthSpec& spec, const ModelConfig& config, ThreadPool* pool)
      : spec_(spec), config_(config), pool_(pool) {}
  std::vector<TensorProducer> run();
  const std::set<std::string>& plain_linears() const { return plain_linears_; }

 private:
  void vector(const std::string& name, int64_t n, float mean, float deviation, DType type = DType::BF16);
  void linear(const std::string& module, int64_t n, int64_t k);
  void mlp(const std::string& prefix, int64_t width);
  void stacked(const std::string& prefix);
  void indexer(const std::string& prefix);
  void layer(int index, bool sparse, bool indexer_tensors);
  RowSource source(const std::string& module, int64_t n, int64_t k) const;
  bool quantised(const std::string& module, int64_t n, int64_t k) const;
  float maximum(const std::string& module, int64_t n, int64_t k) const;

  const SynthSpec& spec_;
  const ModelConfig& config_;
  ThreadPool* pool_;
  std::vector<TensorProducer> out_{};
  std::set<std::string> plain_linears_{};
};

RowSource Builder::source(const std::string& module, int64_t n, int64_t k) const {
  // y = W x keeps the size of x on average; the embedding is small, as in trained models; logits get a spread of a few
  // units.
  float deviation = 1.0f / std::sqrt(static_cast<float>(k));
  if (module == "model.embed_tokens") deviation = 0.05f;
  if (module == "lm_head") deviation *= 2.0f;
  return rows_of(random_of(spec_.seed, module, 0.0f, deviation), n, k);
}

bool Builder::quantised(const std::string& module, int64_t n, int64_t k) const {
  if (spec_.format == SynthFormat::Bf16 || (spec_.experts_only && module.find(".mlp.experts.") == std::string::npos))
    return false;
  const QuantizeTo like = is_nvfp4(spec_.format) ? QuantizeTo::Nvfp4 : QuantizeTo::Fp8;
  return quantises(like, {.name = module + ".weight", .shape = {n, k}}, config_.num_hidden_layers);
}

// Of the tensor, for NVFP4 of the gate/up pair.
float Builder::maximum(const std::string& module, int64_t n, int64_t k) const {
  if (pool_ == nullptr) return 1.0f;
  float amax = matrix_maximum(source(module, n, k), *pool_);
  if (!is_nvfp4(spec_.format)) return amax;
  for (const auto& [own, other] : {std::pair("gate_proj", "up_proj"), std::pair("up_proj", "gate_proj")}) {
    if (!module.ends_with(own)) continue;
    const std::string sibling = module.substr(0, module.size() - std::string_view(own).size()) + other;
    amax = std::max(amax, matrix_maximum(source(sibling, n, k), *pool_));
    break;
  }
  return amax;
}

void Builder::linear(const std::string& module, int64_t n, int64_t k) {
  EncodeArgs args{.module = module,
                  .source = source(module, n, k),
                  .encoding = Encoding::Bf16,
                  .maximum = 0,
                  .input_maximum = std::nullopt};
  if (quantised(module, n, k)) {
    args.encoding = encoding_of(spec_.format);
    if (is_nvfp4(spec_.format) || spec_.format == SynthFormat::Fp8Tensor) args.maximum = maximum(module, n, k);
    if (spec_.input_scales) args.input_maximum = module.ends_with("down_proj") ? 12.0f : 8.0f;
  } else {
    plain_linears_.insert(module);
  }
  append_encoded(args, out_);
}

void Builder::vector(const std::string& name, int64_t n, float mean, float deviation, DType type) {
  const RowSource values = rows_of(random_of(spec_.seed, name, mean, deviation), n, 1);
  out_.push_back({.info = {.name = name, .dtype = type, .shape = {n}},
                  .rows = n,
                  .row_step = 1,
                  .fill = [values, type](int64_t first, int64_t count, std::byte* out) {
                    for (int64_t i = 0; i < count; ++i) {
                      float value = 0;
                      values.rows(first + i, 1, &value);
                      const uint16_t code = f32_to_bf16(value);
                      if (type == DType::F32) std::memcpy(out + 4 * i, &value, 4);
                      if (type == DType::BF16) std::memcpy(out + 2 * i, &code, 2);
                    }
                  }});
}

void Builder::mlp(const std::string& prefix, int64_t width) {
  linear(prefix + "gate_proj", width, config_.hidden_size);
  linear(prefix + "up_proj", width, config_.hidden_size);
  linear(prefix + "down_proj", config_.hidden_size, width);
}

// The same values as the per-expert tensors, one after the other.
void Builder::stacked(const std::string& prefix) {
  const int64_t experts = config_.n_routed_experts, width = config_.moe_intermediate_size, hidden = config_.hidden_size;
  const auto add = [&](const std::string& name, std::vector<RowSource> parts, int64_t rows) {
    const int64_t k = parts.front().k, part_rows = parts.front().n;
    RowSource all{experts * rows, k,
                  [parts = std::move(parts), k, part_rows](int64_t first, int64_t count, float* out) {
                    for (int64_t r = first; r < first + count; ++r) {
                      parts[static_cast<size_t>(r / part_rows)].rows(r % part_rows, 1, out + (r - first) * k);
                    }
                  }};
    std::vector<TensorProducer> one;
    append_encoded({.module = name,
                    .source = std::move(all),
                    .encoding = Encoding::Bf16,
                    .maximum = 0,
                    .input_maximum = std::nullopt},
                   one);
    one.front().info.name = name;  // without ".weight"
    one.front().info.shape = {experts, rows, k};
    out_.push_back(std::move(one.front()));
  };
  std::vector<RowSource> gate_up, down;
  for (int64_t e = 0; e < experts; ++e) {
    const std::string expert = fmt::format("{}{}.", prefix, e);
    gate_up.push_back(source(expert + "gate_proj", width, hidden));
    gate_up.push_back(source(expert + "up_proj", width, hidden));
    down.push_back(source(expert + "down_proj", hidden, width));
  }
  add(prefix + "gate_up_proj", std::move(gate_up), 2 * width);
  add(prefix + "down_proj", std::move(down), hidden);
}

void Builder::indexer(const std::string& prefix) {
  linear(prefix + "wq_b", static_cast<int64_t>(config_.index_n_heads) * config_.index_head_dim, config_.q_lora_rank);
  linear(prefix + "wk", config_.index_head_dim, config_.hidden_size);
  vector(prefix + "k_norm.weight", config_.index_head_dim, 1.0f, 0.1f);
  vector(prefix + "k_norm.bias", config_.index_head_dim, 0.0f, 0.1f);
  linear(prefix + "weights_proj", config_.index_n_heads, config_.hidden_size);
}

void Builder::layer(int index, bool sparse, bool indexer_tensors) {
  const ModelConfig& c = config_;
  const int64_t hidden = c.hidden_size, heads = c.num_attention_heads, latent = c.kv_lora_rank;
  const std::string p = fmt::format("model.layers.{}.", index), a = p + "self_attn.";
  vector(p + "input_layernorm.weight", hidden, 1.0f, 0.1f);
  vector(p + "post_attention_layernorm.weight", hidden, 1.0f, 0.1f);
  linear(a + "q_a_proj", c.q_lora_rank, hidden);
  vector(a + "q_a_layernorm.weight", c.q_lora_rank, 1.0f, 0.1f);
  linear(a + "q_b_proj", heads * c.qk_head_dim(), c.q_lora_rank);
  linear(a + "kv_a_proj_with_mqa", latent + c.qk_rope_head_dim, hidden);
  vector(a + "kv_a_layernorm.weight", latent, 1.0f, 0.1f);
  linear(a + "kv_b_proj", heads * (c.qk_nope_head_dim + c.v_head_dim), latent);
  linear(a + "o_proj", hidden, heads * c.v_head_dim);
  if (c.attention_bias) {
    vector(a + "q_a_proj.bias", c.q_lora_rank, 0.0f, 0.1f);
    vector(a + "kv_a_proj_with_mqa.bias", latent + c.qk_rope_head_dim, 0.0f, 0.1f);
    vector(a + "o_proj.bias", hidden, 0.0f, 0.1f);
  }
  if (indexer_tensors) indexer(a + "indexer.");
  if (!sparse) return mlp(p + "mlp.", c.intermediate_size);
  linear(p + "mlp.gate", c.n_routed_experts, hidden);
  vector(p + "mlp.gate.e_score_correction_bias", c.n_routed_experts, 0.0f, 0.05f, DType::F32);
  mlp(p + "mlp.shared_experts.", static_cast<int64_t>(c.n_shared_experts) * c.moe_intermediate_size);
  if (spec_.stacked_experts) return stacked(p + "mlp.experts.");
  for (int e = 0; e < c.n_routed_experts; ++e) mlp(fmt::format("{}mlp.experts.{}.", p, e), c.moe_intermediate_size);
}

std::vector<TensorProducer> Builder::run() {
  const ModelConfig& c = config_;
  constexpr size_t kOfAnExpert = size_t{3} * 4, kOfALayer = 64;  // NVFP4: weight, scale, global and input scale
  out_.reserve(static_cast<size_t>(c.num_hidden_layers + 1) *
               (static_cast<size_t>(c.n_routed_experts) * kOfAnExpert + kOfALayer));
  linear("model.embed_tokens", c.vocab_size, c.hidden_size);
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    layer(i, c.is_sparse_mlp(i), c.is_full_indexer(i) || spec_.shared_layer_indexers);
  }
  if (spec_.mtp && c.num_nextn_predict_layers.value_or(0) > 0) {
    const std::string p = fmt::format("model.layers.{}.", c.num_hidden_layers);
    layer(c.num_hidden_layers, /*sparse=*/true, /*indexer_tensors=*/true);
    for (const char* norm : {"enorm", "hnorm", "shared_head.norm"})
      vector(p + norm + ".weight", c.hidden_size, 1.0f, 0.1f);
    linear(p + "eh_proj", c.hidden_size, 2 * static_cast<int64_t>(c.hidden_size));
  }
  vector("model.norm.weight", c.hidden_size, 1.0f, 0.1f);
  if (!c.tie_word_embeddings) linear("lm_head", c.vocab_size, c.hidden_size);
  if (pool_ == nullptr) return std::move(out_);  // headers alone need no order
  std::stable_sort(out_.begin(), out_.end(),
                   [](const auto& a, const auto& b) { return checkpoint_order(a.info.name, b.info.name); });
  return std::move(out_);
}

// config.json's section in the words of each producer (formats.md 2.4, 2.9, 3.1); hf_quant_config.json for ModelOpt.
json quantization_section(const SynthSpec& spec, const std::set<std::string>& excluded) {
  switch (spec.format) {
    case SynthFormat::Bf16:
      return nullptr;
    case SynthFormat::Fp8:
    case SynthFormat::Fp8Ue8m0: {
      json section{{"quant_method", "fp8"},
                   {"fmt", "e4m3"},
                   {"activation_scheme", "dynamic"},
                   {"weight_block_size", {128, 128}},
                   {"modules_to_not_convert", excluded}};
      if (spec.format == SynthFormat::Fp8Ue8m0) section["scale_fmt"] = "ue8m0";
      return section;
    }
    case SynthFormat::Fp8Tensor:
      return {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"ignore", excluded}};
    case SynthFormat::Nvfp4:
      return {{"quant_method", "modelopt"},
              {"quant_algo", spec.input_scales ? "NVFP4" : "W4A16_NVFP4"},
              {"ignore", excluded}};
    case SynthFormat::Nvfp4Compressed: {
      const json weights{{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}};
      json inputs = weights;
      inputs["dynamic"] = spec.input_scales ? json("local") : json(true);
      return {{"quant_method", "compressed-tensors"},
              {"format", "nvfp4-pack-quantized"},
              {"ignore", excluded},
              {"config_groups",
               {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", inputs}}}}}};
    }
    case SynthFormat::Fp8BlockCompressed: {
      const json weights{{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {128, 128}}};
      const json inputs{
          {"num_bits", 8}, {"type", "float"}, {"strategy", "group"}, {"group_size", 128}, {"dynamic", true}};
      return {{"quant_method", "compressed-tensors"},
              {"format", "float-quantized"},
              {"ignore", excluded},
              {"config_groups",
               {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", inputs}}}}}};
    }
  }
  return nullptr;
}

struct Built {
  std::vector<TensorProducer> producers{};
  std::string config_json{};
  std::optional<std::string> hf_quant_config_json{};
};

Result<Built> build(const SynthSpec& spec, ThreadPool* pool) {
  PLUMB_TRY(json config_json, parse_json(spec.config_json, "config.json", {.depth = 32, .bytes = 16u << 20}));
  PLUMB_TRY(const ModelConfig config, parse_model_config(config_json));
  if (spec.stacked_experts && spec.format != SynthFormat::Bf16) {
    return Error{Code::Unsupported,
                 "stacked experts in a quantised format",
                 "no producer writes them so",
                 {"stacked experts with bf16"}};
  }
  const int64_t narrowest = std::min(config.moe_intermediate_size, config.intermediate_size);
  if (is_nvfp4(spec.format) &&
      (config.hidden_size % 16 != 0 || narrowest % 16 != 0 || config.moe_intermediate_size % 16 != 0)) {
    return Error{Code::Unsupported,
                 "NVFP4 needs hidden_size, intermediate_size and moe_intermediate_size in multiples of 16",
                 "",
                 {}};
  }
  Builder builder(spec, config, pool);
  Built built;
  built.producers = builder.run();
  config_json.erase("quantization_config");
  const json section = quantization_section(spec, builder.plain_linears());
  if (!section.is_null()) config_json["quantization_config"] = section;
  built.config_json = config_json.dump(2);
  if (spec.format == SynthFormat::Nvfp4 || spec.format == SynthFormat::Fp8Tensor) {
    json quantization{{"quant_algo", section["quant_algo"]},
                      {"kv_cache_quant_algo", nullptr},
                      {"exclude_modules", section["ignore"]}};
    if (spec.format == SynthFormat::Nvfp4) quantization["group_size"] = 16;
    built.hf_quant_config_json =
        json{{"producer", {{"name", "modelopt"}, {"version", "plumb"}}}, {"quantization", quantization}}.dump(4);
  }
  return built;
}

}  // namespace

std::optional<SynthFormat> synth_format_from_name(std::string_view name) {
  for (const NamedFormat& format : kFormats) {
    if (name == format.name) return format.format;
  }
  return std::nullopt;
}

Status synthesize(const SynthSpec& spec, const std::filesystem::path& destination, ThreadPool& pool) {
  PLUMB_TRY(Built built, build(spec, &pool));
  const ShardedWriteOptions write{destination, spec.max_shard_bytes, spec.progress};
  PLUMB_TRY_STATUS(write_sharded(std::move(built.producers), write, pool));
  PLUMB_TRY_STATUS(write_text_file(destination / "config.json", built.config_json));
  if (built.hf_quant_config_json)
    PLUMB_TRY_STATUS(write_text_file(destination / "hf_quant_config.json", *built.hf_quant_config_json));
  if (spec.tokenizer_from) return copy_side_files(*spec.tokenizer_from, destination);
  return Ok{};
}

Result<SynthHeaders> synth_headers(const SynthSpec& spec) {
  PLUMB_TRY(Built built, build(spec, nullptr));
  SynthHeaders headers{{}, std::move(built.config_json), std::move(built.hf_quant_config_json)};
  uint64_t offset = 0;
  for (TensorProducer& producer : built.producers) {
    TensorInfo info = std::move(producer.info);
    info.begin = offset;
    offset += static_cast<uint64_t>(info.elements()) * static_cast<uint64_t>(bits(info.dtype)) / 8;
    info.end = offset;
    headers.tensors.push_back(std::move(info));
  }
  return headers;
}

std::string tiny_config_json(const TinySpec& tiny) {
  const int unit = tiny.wide ? 128 : 32;
  json config{{"architectures", {"GlmMoeDsaForCausalLM"}},
              {"model_type", "glm_moe_dsa"},
              {"dtype", "bfloat16"},
              {"vocab_size", 512},
              {"hidden_size", tiny.wide ? 256 : 64},
              {"intermediate_size", 4 * unit},
              {"moe_intermediate_size", unit},
              {"num_hidden_layers", 4},
              {"first_k_dense_replace", 1},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 4},
              {"q_lora_rank", tiny.wide ? 128 : 48},
              {"kv_lora_rank", unit},
              {"qk_nope_head_dim", 24},
              {"qk_rope_head_dim", 8},
              {"v_head_dim", 32},
              {"n_routed_experts", 8},
              {"num_experts_per_tok", 2},
              {"n_shared_experts", 1},
              {"n_group", 1},
              {"topk_group", 1},
              {"norm_topk_prob", true},
              {"routed_scaling_factor", 2.5},
              {"scoring_func", "sigmoid"},
              {"topk_method", "noaux_tc"},
              {"index_n_heads", 4},
              {"index_head_dim", 32},
              {"index_topk", 8},
              {"hidden_act", "silu"},
              {"rms_norm_eps", 1e-5},
              {"max_position_embeddings", 1024},
              {"rope_parameters", {{"rope_theta", 1000000.0}, {"rope_type", "default"}}},
              {"attention_bias", false},
              {"tie_word_embeddings", false},
              {"eos_token_id", {1, 2}},
              {"pad_token_id", 0},
              {"bos_token_id", nullptr},
              {"num_nextn_predict_layers", tiny.mtp ? 1 : 0}};
  if (tiny.shared_indexers) config["indexer_types"] = {"full", "shared", "full", "shared"};
  return config.dump(2);
}

}  // namespace plumb
