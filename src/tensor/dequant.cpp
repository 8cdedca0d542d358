#include "tensor/dequant.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

// E5M2 is the upper byte of an F16.
float e5m2_to_f32(uint8_t code) { return f16_to_f32(static_cast<uint16_t>(code << 8)); }

template <class Decode>
std::array<float, 256> table_of(Decode decode) {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) table[static_cast<size_t>(code)] = decode(static_cast<uint8_t>(code));
  return table;
}

const std::array<float, 256>& byte_table(DType type) {
  static const std::array<float, 256> kE4m3 = table_of(e4m3_to_f32);
  static const std::array<float, 256> kE5m2 = table_of(e5m2_to_f32);
  PLUMB_CHECK(type == DType::F8E4M3 || type == DType::F8E5M2, "not a one-byte float element");
  return type == DType::F8E4M3 ? kE4m3 : kE5m2;
}

template <class T>
T load(const void* base, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(base) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Unscaled values of one row.
void decode_elements(const EncodedMatrix& m, int64_t row, float* out) {
  const int64_t first = row * m.k;
  switch (m.format.element) {
    case DType::F32:
      std::memcpy(out, static_cast<const std::byte*>(m.data) + first * 4, static_cast<size_t>(m.k) * 4);
      return;
    case DType::BF16:
      for (int64_t i = 0; i < m.k; ++i) out[i] = bf16_to_f32(load<uint16_t>(m.data, first + i));
      return;
    case DType::F16:
      for (int64_t i = 0; i < m.k; ++i) out[i] = f16_to_f32(load<uint16_t>(m.data, first + i));
      return;
    case DType::F4E2M1:
      PLUMB_CHECK(m.k % 2 == 0, "packed FP4 needs an even row length");
      for (int64_t i = 0; i < m.k; i += 2) {
        const uint8_t pair = load<uint8_t>(m.data, (first + i) / 2);
        out[i] = e2m1_to_f32(pair & 0xf);
        out[i + 1] = e2m1_to_f32(pair >> 4);
      }
      return;
    default: {
      const std::array<float, 256>& table = byte_table(m.format.element);
      for (int64_t i = 0; i < m.k; ++i) out[i] = table[load<uint8_t>(m.data, first + i)];
      return;
    }
  }
}

}  // namespace

int64_t scale_rows(const Format& format, int64_t n) {
  if (!format.quantised()) return 0;
  return format.block_n == 0 ? 1 : ceil_div(n, format.block_n);
}

int64_t scale_cols(const Format& format, int64_t k) {
  if (!format.quantised()) return 0;
  return format.block_k == 0 ? 1 : ceil_div(k, format.block_k);
}

int64_t encoded_data_bytes(const Format& format, int64_t n, int64_t k) { return n * k * bits(format.element) / 8; }

int64_t encoded_scale_bytes(const Format& format, int64_t n, int64_t k) {
  return scale_rows(format, n) * scale_cols(format, k) * (format.scale == ScaleType::F32 ? 4 : 1);
}

float decode_scale(const EncodedMatrix& matrix, int64_t scale_row, int64_t scale_col) {
  const int64_t index = scale_row * scale_cols(matrix.format, matrix.k) + scale_col;
  switch (matrix.format.scale) {
    case ScaleType::F32:
      return load<float>(matrix.scale, index);
    case ScaleType::UE8M0:
      return e8m0_to_f32(load<uint8_t>(matrix.scale, index));
    case ScaleType::UE4M3:
      return e4m3_to_f32(load<uint8_t>(matrix.scale, index));
    case ScaleType::None:
      break;
  }
  return 1.0f;
}

void decode_row(const EncodedMatrix& matrix, int64_t row, float* out) {
  PLUMB_CHECK(row >= 0 && row < matrix.n, "row outside the matrix");
  decode_elements(matrix, row, out);
  if (!matrix.format.quantised()) return;
  const int64_t scale_row = matrix.format.block_n == 0 ? 0 : row / matrix.format.block_n;
  const int64_t block = matrix.format.block_k == 0 ? std::max<int64_t>(matrix.k, 1) : matrix.format.block_k;
  for (int64_t begin = 0; begin < matrix.k; begin += block) {
    const float scale = decode_scale(matrix, scale_row, begin / block);
    const int64_t end = std::min(begin + block, matrix.k);
    for (int64_t i = begin; i < end; ++i) out[i] *= scale;
  }
  if (!matrix.format.global_scale) return;
  for (int64_t i = 0; i < matrix.k; ++i) out[i] *= matrix.global_scale;
}

}  // namespace plumb
