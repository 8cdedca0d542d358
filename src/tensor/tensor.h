// Tensor: a view. Pointer, element type, shape, row-major; only the first dimension may have gaps (`ld`). Owns nothing,
// copies freely.
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
  int64_t ld = 0;  // elements from one index of the first dimension to the next
  Where where = Where::Host;

  Tensor() = default;
  Tensor(void* data_in, DType dtype_in, std::initializer_list<int64_t> shape_in, Where where_in = Where::Host)
      : data(data_in), dtype(dtype_in), rank(static_cast<int>(shape_in.size())), where(where_in) {
    PLUMB_CHECK(rank <= 4, "a Tensor has at most four dimensions");
    int i = 0;
    ld = 1;
    for (const int64_t extent : shape_in) {
      if (i > 0) ld *= extent;
      shape[static_cast<size_t>(i++)] = extent;
    }
  }

  int64_t dim(int i) const { return shape[static_cast<size_t>(i)]; }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim(i);
    return n;
  }
  int64_t bytes() const { return elements() * bits(dtype) / 8; }
  bool contiguous() const { return dim(0) <= 1 || ld * dim(0) == elements(); }
  // First `rows` of the first dimension.
  Tensor head(int64_t rows) const {
    Tensor view = *this;
    view.shape[0] = rows;
    return view;
  }
  // Rows [begin, begin + rows) of the first dimension.
  Tensor slice(int64_t begin, int64_t rows) const {
    Tensor view = head(rows);
    view.data = static_cast<std::byte*>(data) + begin * ld * bits(dtype) / 8;
    return view;
  }
  // Columns [begin, begin + columns) of a matrix.
  Tensor columns(int64_t begin, int64_t columns) const {
    Tensor view = *this;
    view.data = static_cast<std::byte*>(data) + begin * bits(dtype) / 8;
    view.shape[1] = columns;
    return view;
  }
  float* row_f32(int64_t i) const { return f32() + i * ld; }
  int32_t* row_i32(int64_t i) const { return i32() + i * ld; }
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
