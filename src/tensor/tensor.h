// Tensor: a view. Pointer, element type, shape, row-major without gaps. Owns nothing, copies freely.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace plumb {

enum class Where : uint8_t { Host, Cuda };

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::F32;
  int rank = 0;
  std::array<int64_t, 4> shape{};
  Where where = Where::Host;

  Tensor() = default;
  Tensor(void* data_in, DType dtype_in, std::initializer_list<int64_t> shape_in, Where where_in = Where::Host)
      : data(data_in), dtype(dtype_in), rank(static_cast<int>(shape_in.size())), where(where_in) {
    PLUMB_CHECK(rank <= 4, "a Tensor has at most four dimensions");
    int i = 0;
    for (const int64_t extent : shape_in) shape[static_cast<size_t>(i++)] = extent;
  }

  int64_t dim(int i) const { return shape[static_cast<size_t>(i)]; }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim(i);
    return n;
  }
  int64_t bytes() const { return elements() * bits(dtype) / 8; }
  float* f32() const {
    PLUMB_CHECK(dtype == DType::F32, "tensor is not f32");
    return static_cast<float*>(data);
  }
  int32_t* i32() const {
    PLUMB_CHECK(dtype == DType::I32, "tensor is not i32");
    return static_cast<int32_t*>(data);
  }
};

}  // namespace plumb
