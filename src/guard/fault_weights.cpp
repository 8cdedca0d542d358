#include "guard/fault_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

constexpr int kExponentBias = 127;

float ue8m0(std::byte code) { return std::ldexp(1.0f, static_cast<int>(code) - kExponentBias); }

// The scale array read with another element type than it was written with, as far as the format can hold what comes
// out: f32 memory as bytes of exponents, ue8m0 bytes as f32 (of which the exponent stays), ue4m3 bytes as exponents.
void misread_scales(const Format& format, std::vector<std::byte>& scale) {
  const std::vector<std::byte> as_written = scale;
  const auto byte_at = [&](size_t i) { return as_written[i % as_written.size()]; };
  if (format.scale == ScaleType::F32) {
    for (size_t i = 0; i < scale.size() / 4; ++i) {
      const float value = ue8m0(byte_at(i));
      std::memcpy(scale.data() + 4 * i, &value, 4);
    }
    return;
  }
  for (size_t i = 0; i < scale.size(); ++i) {
    if (format.scale == ScaleType::UE4M3) {
      scale[i] = static_cast<std::byte>(f32_to_e4m3(std::min(ue8m0(byte_at(i)), 448.0f)));
    } else {
      const auto high = static_cast<unsigned>(byte_at(4 * i + 3)), low = static_cast<unsigned>(byte_at(4 * i + 2));
      scale[i] = static_cast<std::byte>((high << 1 | low >> 7) & 0xff);
    }
  }
}

// Each block takes the scale of the next one along K; where a row has one scale only, that of the next row.
void shift_scales(const EncodedMatrix& matrix, std::vector<std::byte>& scale) {
  const size_t width = matrix.format.scale == ScaleType::F32 ? 4 : 1;
  const auto rows = static_cast<size_t>(scale_rows(matrix.format, matrix.n));
  const auto columns = static_cast<size_t>(scale_cols(matrix.format, matrix.k));
  const std::vector<std::byte> right = scale;
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) {
      const size_t from = columns > 1 ? r * columns + (c + 1) % columns : (r + 1) % rows;
      std::copy_n(right.begin() + static_cast<std::ptrdiff_t>(from * width), width,
                  scale.begin() + static_cast<std::ptrdiff_t>((r * columns + c) * width));
    }
}

std::vector<std::byte> bytes_of(const void* data, int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  return from == nullptr ? std::vector<std::byte>() : std::vector<std::byte>(from, from + bytes);
}

}  // namespace

const Weight& MisreadWeights::get(const Weight& weight, PlantedKind kind, Executor& executor) {
  for (const Made& made : made_)
    if (made.of == weight.source.data && made.kind == kind) return made.weight;
  Made& made = made_.emplace_back(Made{.of = weight.source.data, .kind = kind});
  const EncodedMatrix& m = weight.source;
  made.data = bytes_of(m.data, encoded_data_bytes(m.format, m.n, m.k));
  made.scale = bytes_of(m.scale, encoded_scale_bytes(m.format, m.n, m.k));
  if (kind == PlantedKind::NibbleOrder && m.format.element == DType::F4E2M1)
    for (std::byte& pair : made.data) pair = (pair << 4) | (pair >> 4);
  if (kind == PlantedKind::ScaleFormat && !made.scale.empty()) misread_scales(m.format, made.scale);
  if (kind == PlantedKind::BlockOffset && !made.scale.empty()) shift_scales(m, made.scale);
  made.weight = weight;
  made.weight.source.data = made.data.data();
  made.weight.source.scale = made.scale.empty() ? nullptr : made.scale.data();
  if (weight.layout == Layout::RowMajor) return made.weight;
  const Conversion* conversion = registry_.conversion(weight.layout, m.format);
  PLUMB_CHECK(conversion != nullptr, "a weight was prepared by a conversion that is not there");
  // Kernels and conversions want aligned memory, on either side.
  const size_t bytes = conversion->bytes(made.weight.source);
  const auto room = [bytes](const Memory& memory) {
    Result<std::shared_ptr<std::byte>> block = memory.allocate(bytes, "a planted fault");
    PLUMB_CHECK(static_cast<bool>(block), "no memory for a planted fault");
    return *std::move(block);
  };
  const std::shared_ptr<std::byte> staging = room(host_memory());
  conversion->fill(made.weight.source, staging.get(), 0, 1);
  made.prepared = room(executor.memory());
  executor.memory().upload(made.prepared.get(), staging.get(), bytes, executor.stream());
  executor.memory().synchronise(executor.stream());
  made.weight.prepared = made.prepared.get();
  return made.weight;
}

}  // namespace plumb
