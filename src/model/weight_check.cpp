// Values of weights: the canonical bytes for kernels, and the load-time invariants of formats.md section 5.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "model/weight_map.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

float scale_value(const CheckpointTensor& scale, int64_t index) {
  switch (scale.info.dtype) {
    case DType::F32: {
      float value = 0;
      std::memcpy(&value, scale.data + index * 4, 4);
      return value;
    }
    case DType::BF16: {
      uint16_t code = 0;
      std::memcpy(&code, scale.data + index * 2, 2);
      return bf16_to_f32(code);
    }
    case DType::F8E4M3:
      return e4m3_to_f32(static_cast<uint8_t>(scale.data[index]));
    default:
      return e8m0_to_f32(static_cast<uint8_t>(scale.data[index]));
  }
}

Error bad(const std::string& name, std::string what, std::string why = "") {
  return Error{Code::Corrupt, fmt::format("{}: {}", name, what), std::move(why), {}};
}

Status check_scales(const WeightSource& source) {
  const CheckpointTensor& scale = *source.scale;
  const int64_t count = scale.info.elements();
  // A zero block scale occurs only where a producer wrote one for an all-zero block; it decodes to zeros, a sign or NaN
  // does not.
  const bool bytes = source.format.scale == ScaleType::UE4M3;
  for (int64_t i = 0; i < count; ++i) {
    const float value = scale_value(scale, i);
    const bool well = bytes ? static_cast<uint8_t>(scale.data[i]) <= 0x7e : value > 0 && std::isfinite(value);
    if (!well) {
      return bad(scale.info.name, fmt::format("scale {} of {} is {}", i, count, value),
                 "scales are finite and above 0");
    }
  }
  return Ok{};
}

// Index of the first code that is infinite or NaN, or -1. `kMask` are the exponent bits; all set means not finite.
template <class T, T kMask>
int64_t first_not_finite(const std::byte* data, int64_t count) {
  constexpr int64_t kChunk = 4096;  // looked at as a whole, so that the inner loop has no exit and vectorises
  std::array<T, kChunk> chunk;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t length = std::min(kChunk, count - begin);
    std::memcpy(chunk.data(), data + begin * static_cast<int64_t>(sizeof(T)), static_cast<size_t>(length) * sizeof(T));
    unsigned hits = 0;
    for (int64_t i = 0; i < length; ++i) hits |= (chunk[static_cast<size_t>(i)] & kMask) == kMask ? 1u : 0u;
    if (hits == 0) continue;
    for (int64_t i = 0; i < length; ++i) {
      if ((chunk[static_cast<size_t>(i)] & kMask) == kMask) return begin + i;
    }
  }
  return -1;
}

Status check_elements(const WeightSource& source, const EncodedMatrix& matrix) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  const int64_t count = source.n * source.k;
  int64_t at = -1;
  switch (source.format.element) {
    case DType::F32:
      at = first_not_finite<uint32_t, 0x7f800000u>(data, count);
      break;
    case DType::BF16:
      at = first_not_finite<uint16_t, 0x7f80u>(data, count);
      break;
    case DType::F16:
      at = first_not_finite<uint16_t, 0x7c00u>(data, count);
      break;
    case DType::F8E4M3:
      at = first_not_finite<uint8_t, 0x7fu>(data, count);
      break;
    default:
      break;  // every FP4 code is a number
  }
  if (at < 0) return Ok{};
  return bad(source.name, fmt::format("element [{}, {}] is not finite", at / source.k, at % source.k));
}

// Root mean square of sampled rows of a quantised weight. A reciprocal global scale, or scales of another tensor, put
// it far outside of what a trained weight can have; an unquantised one has no scale to get wrong.
Status check_magnitude(const WeightSource& source, const EncodedMatrix& matrix) {
  constexpr int64_t kRows = 64;
  std::vector<float> row(static_cast<size_t>(source.k));
  const int64_t rows = std::min(kRows, source.n);
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    decode_row(matrix, i * source.n / rows, row.data());
    for (const float value : row) sum += static_cast<double>(value) * value;
  }
  const double rms = std::sqrt(sum / static_cast<double>(std::max<int64_t>(rows * source.k, 1)));
  if (rms >= 1e-4 && rms <= 10.0) return Ok{};
  return bad(source.name, fmt::format("has a root mean square of {:.3g} as {}", rms, source.format.to_string()),
             "weights lie between 1e-4 and 10: its scales follow another convention or belong to another tensor");
}

}  // namespace

namespace {

// Rows [first_row, first_row + rows) and bytes [begin, begin + bytes) of each, of rows of `stride` bytes.
std::vector<std::byte> cut_out(const std::byte* from, int64_t rows, int64_t stride, int64_t begin, int64_t bytes) {
  std::vector<std::byte> out(static_cast<size_t>(rows * bytes));
  for (int64_t row = 0; row < rows; ++row) std::copy_n(from + row * stride + begin, bytes, out.data() + row * bytes);
  return out;
}

// A weight's own scales among its tensor's; cut_out of blocks is exact because no share cuts through one (split.h).
void take_scales(const WeightSource& source, EncodedSource& out) {
  const Format& format = source.format;
  const int64_t file_columns = scale_cols(format, source.columns_in_file());
  const int64_t each = format.scale == ScaleType::F32 ? 4 : 1;
  const auto* scales = static_cast<const std::byte*>(out.matrix.scale);
  if (format.block_n > 0) scales += source.row_offset / format.block_n * file_columns * each;
  if (source.part_of_rows() && format.block_k > 0) {
    std::vector<std::byte> own =
        cut_out(scales, scale_rows(format, source.n), file_columns * each, source.column_offset / format.block_k * each,
                scale_cols(format, source.k) * each);
    out.scale_copy = std::move(own);
    scales = out.scale_copy.data();
  }
  out.matrix.scale = scales;
}

}  // namespace

EncodedSource encode_source(const WeightSource& source) {
  PLUMB_CHECK(source.data != nullptr && source.data->data != nullptr, "the checkpoint has no data");
  EncodedSource out;
  EncodedMatrix& m = out.matrix;
  m = EncodedMatrix{.format = source.format,
                    .n = source.n,
                    .k = source.k,
                    .data = source.data->data,
                    .scale = nullptr,
                    .global_scale = source.global_scale};
  const int64_t file_row = encoded_data_bytes(source.format, 1, source.columns_in_file());
  m.data = source.data->data + source.row_offset * file_row;
  if (source.part_of_rows()) {
    out.data_copy = cut_out(static_cast<const std::byte*>(m.data), source.n, file_row,
                            encoded_data_bytes(source.format, 1, source.column_offset),
                            encoded_data_bytes(source.format, 1, source.k));
    m.data = out.data_copy.data();
  }
  if (!source.format.quantised()) return out;
  const CheckpointTensor& scale = *source.scale;
  m.scale = scale.data;
  const DType type = scale.info.dtype;
  const int64_t count = scale.info.elements();
  if (source.format.scale == ScaleType::F32 && type == DType::BF16) {
    out.scale_copy.resize(static_cast<size_t>(count) * 4);
    for (int64_t i = 0; i < count; ++i) {
      const float value = scale_value(scale, i);
      std::memcpy(out.scale_copy.data() + i * 4, &value, 4);
    }
  } else if (source.format.scale == ScaleType::UE8M0 && (type == DType::F32 || type == DType::BF16)) {
    out.scale_copy.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      out.scale_copy[static_cast<size_t>(i)] = static_cast<std::byte>(f32_to_bits(scale_value(scale, i)) >> 23);
    }
  }
  if (!out.scale_copy.empty()) m.scale = out.scale_copy.data();
  take_scales(source, out);
  return out;
}

Status check_weight_values(const WeightSource& source) {
  if (!source || source.data->data == nullptr) return Ok{};
  if (source.scale != nullptr) PLUMB_TRY_STATUS(check_scales(source));
  if (source.global != nullptr && !(source.global_scale < 1.0f)) {
    return bad(source.global->info.name, fmt::format("multiplies by {:.3g}", source.global_scale),
               "global scales are far below 1 (amax / 2688): this is the reciprocal, the other producer's convention");
  }
  const EncodedSource encoded = encode_source(source);
  PLUMB_TRY_STATUS(check_elements(source, encoded.matrix));
  if (source.format.quantised()) return check_magnitude(source, encoded.matrix);
  return Ok{};
}

}  // namespace plumb
