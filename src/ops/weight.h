// Weight: one matrix of the model, as the file encodes it and, when the chosen kernel wants another arrangement,
// prepared for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tensor/dequant.h"
#include "tensor/format.h"

namespace plumb {

// A short vector of f32 (a norm's weight, a bias) where the backend's kernels read it.
class FloatVector {
 public:
  FloatVector() = default;
  FloatVector(std::shared_ptr<const std::byte> storage, size_t size) : storage_(std::move(storage)), size_(size) {}
  const float* data() const { return reinterpret_cast<const float*>(storage_.get()); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::shared_ptr<const std::byte> storage_{};
  size_t size_ = 0;
};

struct Weight {
  std::string name{};      // in the checkpoint, without ".weight"
  EncodedMatrix source{};  // [n, k] as in the file (mapped); stays readable, so a reference can always be run
  Layout layout = Layout::RowMajor;
  const std::byte* prepared = nullptr;  // the same numbers in `layout`; null when layout is RowMajor
  const float* bias = nullptr;          // [n] or null
  float input_scale = 0.0f;             // calibrated activation scale (multiply to decode); 0: none

  int64_t n() const { return source.n; }
  int64_t k() const { return source.k; }
  const Format& format() const { return source.format; }
  explicit operator bool() const { return source.data != nullptr; }
};

}  // namespace plumb
