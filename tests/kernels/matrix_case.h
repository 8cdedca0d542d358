// OpCase whose data are matrices with a row per row of the step.
#pragma once

#include <cmath>
#include <limits>

#include "guard/op_judge.h"
#include "op_case.h"

namespace plumb::testing {

// [rows, columns] of 32-bit elements, rows farther apart than they are long; the gaps are fences too.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns)
      : rows_(rows), columns_(columns), buffer_(static_cast<size_t>(rows * ld()) * 4, 4) {}

  void fill(Values values, Rng& rng) {
    for (int64_t r = 0; r < rows_; ++r) fill_values(row(r), columns_, values, rng);
  }
  void fill_row(int64_t r, float value) { std::fill_n(row(r), columns_, value); }
  // Rows only: what lies between them stays a fence.
  void poison(uint8_t byte) {
    for (int64_t r = 0; r < rows_; ++r) std::memset(row(r), byte, static_cast<size_t>(columns_) * 4);
  }
  float* row(int64_t r) { return buffer_.as<float>() + r * ld(); }
  const float* row(int64_t r) const { return buffer_.as<float>() + r * ld(); }
  const int32_t* ints(int64_t r) const { return buffer_.as<int32_t>() + r * ld(); }
  int32_t* ints(int64_t r) { return buffer_.as<int32_t>() + r * ld(); }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  Tensor tensor(int64_t first, int64_t count, DType type = DType::F32) {
    Tensor view(row(first), type, {count, columns_});
    view.ld = ld();
    return view;
  }
  void copy_from(const Matrix& other) { buffer_.copy_from(other.buffer_); }
  bool same_as(const Matrix& other) const { return buffer_.same_as(other.buffer_); }
  bool whole() const {
    if (!buffer_.fences_whole()) return false;
    for (int64_t r = 0; r < rows_; ++r) {
      const std::byte* gap = reinterpret_cast<const std::byte*>(row(r) + columns_);
      for (size_t i = 0; i < kGap * 4; ++i) {
        if (gap[i] != std::byte{kFenceByte}) return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kGap = 5;
  int64_t ld() const { return columns_ + static_cast<int64_t>(kGap); }
  int64_t rows_;
  int64_t columns_;
  Buffer buffer_;
};

class MatrixCase : public OpCase {
 public:
  void reset(uint8_t poison) override {
    for (Output& output : outputs_) {
      output.matrix->poison(poison);
      if (output.original) output.matrix->copy_from(*output.original);
    }
  }

  std::vector<std::byte> outputs() const override {
    std::vector<std::byte> bytes;
    for (const Output& output : outputs_) {
      for (int64_t r = 0; r < output.matrix->rows(); ++r) {
        if (r != padding_row_) append(bytes, output.matrix->row(r), static_cast<size_t>(output.matrix->columns()) * 4);
      }
    }
    return bytes;
  }

  void expect(Stream& stream) override {
    reset(0x5a);
    launch(reference_of(call().op), stream, 0, rows_);
    for (Output& output : outputs_) {
      output.want = std::make_unique<Matrix>(output.matrix->rows(), output.matrix->columns());
      output.want->copy_from(*output.matrix);
    }
  }

  void launch(const Kernel& kernel, Stream& stream, int64_t first, int64_t count) override {
    const AnyArgs args = arguments(Side::Have, first, count);
    kernel.launch(raw(args), stream);
  }

  void check(const Contract& contract, Problems& problems) override {
    const int64_t end = padding_row_ < 0 ? rows_ : padding_row_;
    check_rows(contract, 0, end, problems);
    check_rows(contract, end + 1, rows_ - end - 1, problems);
  }

  bool whole() const override {
    for (const Output& output : outputs_) {
      if (!output.matrix->whole()) return false;
    }
    for (const Input& input : inputs_) {
      if (!input.matrix->whole() || !input.matrix->same_as(*input.original)) return false;
    }
    return true;
  }

 protected:
  struct Input {
    std::unique_ptr<Matrix> matrix{};
    std::unique_ptr<Matrix> original{};
  };
  struct Output {
    std::unique_ptr<Matrix> matrix{};
    std::unique_ptr<Matrix> original{};  // of what is read before it is written
    std::unique_ptr<Matrix> want{};
  };

  // Rows of the op with its outputs where the kernel under test or the reference writes them, or with its inputs as
  // they were at first.
  enum class Side { Have, Want, Before };
  virtual AnyArgs arguments(Side side, int64_t first, int64_t count) = 0;

  // Padding rows hold NaN.
  Matrix& add_input(std::unique_ptr<Matrix> matrix) {
    if (padding_row_ >= 0) matrix->fill_row(padding_row_, std::numeric_limits<float>::quiet_NaN());
    auto original = std::make_unique<Matrix>(matrix->rows(), matrix->columns());
    original->copy_from(*matrix);
    inputs_.push_back({.matrix = std::move(matrix), .original = std::move(original)});
    return *inputs_.back().matrix;
  }
  Matrix& add_input(int64_t columns, Values values, Rng& rng) {
    auto matrix = std::make_unique<Matrix>(rows_, columns);
    matrix->fill(values, rng);
    return add_input(std::move(matrix));
  }
  Matrix& add_output(int64_t columns) {
    outputs_.push_back({.matrix = std::make_unique<Matrix>(rows_, columns)});
    return *outputs_.back().matrix;
  }
  Matrix& add_in_out(int64_t columns, Values values, Rng& rng) {
    Matrix& matrix = add_output(columns);
    matrix.fill(values, rng);
    if (padding_row_ >= 0) matrix.fill_row(padding_row_, std::numeric_limits<float>::quiet_NaN());
    outputs_.back().original = std::make_unique<Matrix>(rows_, columns);
    outputs_.back().original->copy_from(matrix);
    return matrix;
  }
  Matrix& output(size_t index, Side side = Side::Have) {
    Output& output = outputs_[index];
    return side == Side::Want                        ? *output.want
           : side == Side::Before && output.original ? *output.original
                                                     : *output.matrix;
  }
  Matrix& in(size_t index) { return *inputs_[index].matrix; }

  int64_t padding_row_ = -1;

 private:
  void check_rows(const Contract& contract, int64_t first, int64_t count, Problems& problems) {
    if (count <= 0) return;
    const Judgement judgement = judge_outputs(contract, arguments(Side::Before, first, count),
                                              arguments(Side::Have, first, count), arguments(Side::Want, first, count));
    if (!judgement.passes()) problems.push_back("from row " + std::to_string(first) + ": " + judgement.to_string());
  }

  std::vector<Output> outputs_{};
  std::vector<Input> inputs_{};
};

}  // namespace plumb::testing
