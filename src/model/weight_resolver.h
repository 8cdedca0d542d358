// Finds one weight in a checkpoint, decides its format from the tensors present (formats.md sections 2, 3) and holds
// that against the quantisation metadata. Problems are collected, so that all of them can be told at once.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/weight_map.h"

namespace plumb {

// May a producer have quantised it?
enum class Quantisable { Never, Yes };

class WeightResolver {
 public:
  WeightResolver(const Checkpoint& checkpoint, const QuantConfig& quant)
      : checkpoint_(checkpoint), quant_(quant), used_(checkpoint.tensors().size()) {}

  bool exists(std::string_view name) const { return checkpoint_.find(name) != nullptr; }
  // A linear of `module` (name without ".weight"), [n, k].
  WeightSource linear(const std::string& module, int64_t n, int64_t k, Quantisable quantisable = Quantisable::Yes);
  // A norm weight or bias [n] by its full name.
  WeightSource vector(const std::string& name, int64_t n);
  // The same, and it must be F32.
  WeightSource vector_f32(const std::string& name, int64_t n);
  // A stacked tensor [experts, rows, k] by its full name; nullptr with a problem noted if it is not that.
  const CheckpointTensor* stacked(const std::string& name, int64_t experts, int64_t rows, int64_t k);
  // Marks tensors as known though nothing reads them; returns how many.
  int ignore_prefix(std::string_view prefix);
  bool ignore(std::string_view name);

  void note(std::string text) { notes_.push_back(std::move(text)); }
  std::vector<std::string> take_notes();
  // Everything that is wrong, or well. Call after all weights were asked for.
  Status verdict();

 private:
  const CheckpointTensor* take(const std::string& name);
  const CheckpointTensor* require(const std::string& name);
  bool use(const CheckpointTensor& tensor);  // false: it was in use
  bool has_shape(const CheckpointTensor& tensor, std::initializer_list<int64_t> shape);
  void resolve_fp8(const std::string& module, WeightSource& source);
  void resolve_nvfp4(const std::string& module, WeightSource& source, bool compressed_tensors);
  void resolve_block_scale(const std::string& module, WeightSource& source);
  float scalar(const CheckpointTensor& tensor, bool reciprocal);
  void take_input_scale(const std::string& name, WeightSource& source, bool reciprocal);
  void compare_with_config(const std::string& module, const WeightSource& source, Quantisable quantisable);
  void list_surplus();

  const Checkpoint& checkpoint_;
  const QuantConfig& quant_;
  std::vector<bool> used_;  // by number in the checkpoint
  std::vector<std::string> missing_{}, wrong_{}, surplus_{};
  std::vector<std::string> excluded_but_quantised_{}, other_format_{}, plain_though_wanted_{};
  std::vector<std::string> notes_{};
  std::set<std::string> formats_found_{};
  int64_t static_input_absent_ = 0, uncalibrated_ = 0, quantised_ = 0;
};

}  // namespace plumb
