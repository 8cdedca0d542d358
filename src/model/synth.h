// Random checkpoints of any configuration and format, with statistics like those of trained ones: so that any size can
// be loaded, planned and run without its weights. The same seed gives the same weights in every format, rounded to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace plumb {

class ThreadPool;

enum class SynthFormat {
  Bf16,
  Fp8,                 // 128x128 blocks, f32 scales
  Fp8Ue8m0,            // 128x128 blocks, powers of two
  Fp8Tensor,           // ModelOpt FP8: one scale a tensor
  Fp8BlockCompressed,  // the blocks of Fp8 as compressed-tensors packages them
  Nvfp4,               // ModelOpt
  Nvfp4Compressed,     // compressed-tensors nvfp4-pack-quantized
};
// "bf16", "fp8", "fp8-ue8m0", "fp8-tensor", "ct-fp8-block", "nvfp4", "ct-nvfp4".
std::optional<SynthFormat> synth_format_from_name(std::string_view name);

struct SynthSpec {
  std::string config_json{};  // text of a config.json; a quantization_config in it is replaced
  SynthFormat format = SynthFormat::Bf16;
  bool experts_only = false;           // quantise nothing but routed experts
  bool stacked_experts = false;        // mlp.experts.gate_up_proj and down_proj; BF16 only
  bool input_scales = true;            // static activation scales, in formats that can have them
  bool shared_layer_indexers = false;  // indexer tensors in shared layers too, as some exports have them
  bool mtp = true;                     // the next-n layer, when the configuration counts one
  uint64_t seed = 0;
  uint64_t max_shard_bytes = 5'000'000'000;
  std::optional<std::filesystem::path> tokenizer_from{};  // model folder whose tokenizer and template are copied
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress{};
};

Status synthesize(const SynthSpec& spec, const std::filesystem::path& destination, ThreadPool& pool);

// What synthesize() would write, without writing or computing it: for plans of models that are not here.
struct SynthHeaders {
  std::vector<TensorInfo> tensors{};
  std::string config_json{};  // with its quantization_config
  std::optional<std::string> hf_quant_config_json{};
};
Result<SynthHeaders> synth_headers(const SynthSpec& spec);

// Small fixtures: 4 layers (1 dense MLP, 3 MoE), 4 heads, index_topk 8, 8 experts top-2 and a shared one.
struct TinySpec {
  bool mtp = false;              // one next-n layer
  bool shared_indexers = false;  // indexer_types full, shared, full, shared
  bool wide = false;             // sizes in multiples of 128, as FP8 blocks like them
};
std::string tiny_config_json(const TinySpec& tiny = {});

}  // namespace plumb
