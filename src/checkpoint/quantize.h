// BF16 checkpoint to a quantised one: tensor by tensor, memory bounded by a few chunks (formats.md
// sections 2.3, 2.4, 3.1).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace plumb {

class ThreadPool;

enum class QuantizeTo {
  Fp8,       // 128x128 blocks, f32 scales: every linear but embedding, head, router, weights_proj and eh_proj
  Fp8Ue8m0,  // the same with powers of two as F8_E8M0
  Nvfp4,     // ModelOpt layout: dense MLPs, shared and routed experts of the trunk
};

// Does this kind of checkpoint quantise the tensor? `trunk_layers`: num_hidden_layers; the next-n layer comes after
// them.
bool quantises(QuantizeTo to, const TensorInfo& info, int trunk_layers);

struct QuantizeOptions {
  std::filesystem::path source{};
  std::filesystem::path destination{};
  QuantizeTo to = QuantizeTo::Fp8;
  uint64_t max_shard_bytes = 5'000'000'000;
  // NVFP4 only: JSON object, module name -> largest absolute input seen. Gives `input_scale`; without it there is none,
  // and activations are quantised with scales of their own.
  std::optional<std::filesystem::path> calibration{};
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress{};
};

Status quantize_checkpoint(const QuantizeOptions& options, ThreadPool& pool);

}  // namespace plumb
