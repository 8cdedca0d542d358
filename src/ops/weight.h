// Weight: one matrix of the model, as the file encodes it and, when the chosen kernel wants another arrangement,
// prepared for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/dequant.h"
#include "tensor/format.h"

namespace plumb {

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
