// The tensors that stand for one linear in a quantised checkpoint, as producers for the sharded writer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/sharded_writer.h"

namespace plumb {

// Float32 rows of a matrix [n, k], from wherever; may be called by several threads at once.
struct RowSource {
  int64_t n = 0;
  int64_t k = 0;
  std::function<void(int64_t first, int64_t count, float* out)> rows{};
};

// How a linear is stored: element format, scale layout, and whose names.
enum class Encoding {
  Bf16,
  Fp8Block,            // weight, weight_scale_inv F32
  Fp8BlockUe8m0,       // weight, weight_scale_inv F8_E8M0
  Fp8BlockCompressed,  // weight, weight_scale F32: compressed-tensors' block form
  Fp8Tensor,           // weight, weight_scale F32 []
  Nvfp4,               // weight, weight_scale, weight_scale_2: ModelOpt
  Nvfp4Compressed,     // weight_packed, weight_scale, weight_global_scale: compressed-tensors
};

struct EncodeArgs {
  std::string module{};  // name without ".weight"
  RowSource source{};
  Encoding encoding = Encoding::Bf16;
  float maximum = 0;                     // of the tensor or fused pair; for NVFP4 and per-tensor FP8
  std::optional<float> input_maximum{};  // calibrated; gives the input scale
};

void append_encoded(const EncodeArgs& args, std::vector<TensorProducer>& out);

// Over all rows, on the pool's threads.
float matrix_maximum(const RowSource& source, ThreadPool& pool);

}  // namespace plumb
