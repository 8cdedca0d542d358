// Rows of weights and caches as float32, padded with zeros to whole vectors. Included by files of one instruction set
// each. The values are those of decode_row and of ops/kv.h, bit for bit.
#pragma once

#include <algorithm>

#include "kernels/cpu/vec.h"
#include "ops/kv.h"
#include "tensor/dequant.h"
#include "tensor/encode.h"

namespace plumb::cpu {
namespace {

constexpr int64_t padded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// One row at a time of a matrix; the format is looked at once.
class RowDecoder {
 public:
  explicit RowDecoder(const EncodedMatrix& matrix) : m_(matrix) {
    const Format& f = matrix.format;
    if (matrix.k % kLanes != 0 || f.element == DType::F16 || f.element == DType::F8E5M2) return;
    if (!f.quantised()) {
      way_ = f.element == DType::BF16 ? Way::Bf16 : f.element == DType::F32 ? Way::F32 : Way::Scalar;
    } else if (f.element == DType::F8E4M3 && (f.block_k == 0 || f.block_k % kLanes == 0)) {
      way_ = Way::E4m3;
    } else if (f.element == DType::F4E2M1 && f.scale == ScaleType::UE4M3 && f.block_k == 16) {
      way_ = Way::E2m1;
    }
  }

  // out[0 : padded(k)]
  void decode(int64_t row, float* out) const {
    fetch_ahead(row);
    switch (way_) {
      case Way::F32:
        std::memcpy(out, data(row * m_.k * 4), static_cast<size_t>(m_.k) * 4);
        return;
      case Way::Bf16:
        for (int64_t i = 0; i < m_.k; i += kLanes) store(out + i, from_bf16(data((row * m_.k + i) * 2)));
        return;
      case Way::E4m3:
        return decode_e4m3(row, out);
      case Way::E2m1:
        return decode_e2m1(row, out);
      case Way::Scalar:
        break;
    }
    decode_row(m_, row, out);
    std::fill(out + m_.k, out + padded(m_.k), 0.0f);
  }

 private:
  enum class Way : uint8_t { Scalar, F32, Bf16, E4m3, E2m1 };
  const std::byte* data(int64_t offset) const { return static_cast<const std::byte*>(m_.data) + offset; }
  int64_t scale_row(int64_t row) const { return m_.format.block_n == 0 ? 0 : row / m_.format.block_n; }

  // Rows are decoded in order, once; a plain stream leaves a core waiting. Past the end is harmless.
  void fetch_ahead(int64_t row) const {
    constexpr int kRowsAhead = 4;
    const int64_t bytes = m_.k * bits(m_.format.element) / 8;
    const auto* ahead = static_cast<const char*>(m_.data) + (row + kRowsAhead) * bytes;
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i);
  }

  void decode_e4m3(int64_t row, float* out) const {
    const int64_t block = m_.format.block_k == 0 ? m_.k : m_.format.block_k;
    for (int64_t begin = 0; begin < m_.k; begin += block) {
      const Vec scale = splat(decode_scale(m_, scale_row(row), begin / block));
      const int64_t end = std::min(begin + block, m_.k);
      for (int64_t i = begin; i < end; i += kLanes) store(out + i, from_e4m3(data(row * m_.k + i)) * scale);
    }
  }
  void decode_e2m1(int64_t row, float* out) const {
    const Vec global = splat(m_.format.global_scale ? m_.global_scale : 1.0f);
    const int block = m_.format.block_k;
    const auto* scales = static_cast<const uint8_t*>(m_.scale) + scale_row(row) * (m_.k / block);
    for (int64_t i = 0; i < m_.k; i += block) {
      const Vec scale = splat(e4m3_to_f32(scales[i / block]));
      for (int64_t j = i; j < i + block; j += kLanes) {
        store(out + j, from_packed_e2m1(data((row * m_.k + j) / 2)) * scale * global);
      }
    }
  }

  const EncodedMatrix& m_;
  Way way_ = Way::Scalar;
};

// count values of f32 or bf16, then zeros up to padded(count).
inline void widen_f32(const std::byte* from, int count, float* out) {
  std::memcpy(out, from, static_cast<size_t>(count) * 4);
  std::fill(out + count, out + padded(count), 0.0f);
}
inline void widen_bf16(const std::byte* from, int count, float* out) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, from_bf16(from + int64_t{2} * i));
  if (i == count) return;
  for (int j = i; j < count; ++j) out[j] = bf16_to_f32(load_as<uint16_t>(from + int64_t{2} * j));
  std::fill(out + count, out + padded(count), 0.0f);
}
// One scale for each started `tile` of values.
inline void widen_e4m3(const std::byte* from, const std::byte* scales, int count, int tile, float* out) {
  for (int begin = 0, t = 0; begin < count; begin += tile, ++t) {
    const float scale = load_as<float>(scales + int64_t{4} * t);
    const int end = std::min(begin + tile, count);
    int i = begin;
    for (; i + kLanes <= end; i += kLanes) store(out + i, from_e4m3(from + i) * scale);
    for (; i < end; ++i) out[i] = e4m3_to_f32(load_as<uint8_t>(from + i)) * scale;
  }
  std::fill(out + count, out + padded(count), 0.0f);
}

// A cached token: latent[0 : padded(kv_lora_rank)], then rope[0 : padded(rope_dim)].
inline void widen_latent(const KvGeometry& g, const std::byte* row, float* out) {
  constexpr int kScaleTile = 128;
  const int rank = g.kv_lora_rank;
  float* rope = out + padded(rank);
  switch (g.latent) {
    case KvFormat::F32:
      widen_f32(row, rank, out);
      return widen_f32(row + int64_t{4} * rank, g.rope_dim, rope);
    case KvFormat::Bf16:
      widen_bf16(row, rank, out);
      return widen_bf16(row + int64_t{2} * rank, g.rope_dim, rope);
    case KvFormat::Fp8Tile128:
      widen_e4m3(row, row + rank, rank, kScaleTile, out);
      return widen_bf16(row + rank + int64_t{4} * ((rank + kScaleTile - 1) / kScaleTile), g.rope_dim, rope);
    case KvFormat::None:
      return;
  }
}

// Index key of one slot of a page: out[0 : padded(index_head_dim)].
inline void widen_index_key(const KvGeometry& g, const std::byte* page, int slot, float* out) {
  const int dim = g.index_head_dim;
  const int64_t first = int64_t{slot} * dim;
  switch (g.index_key) {
    case IndexKeyFormat::F32:
      return widen_f32(page + 4 * first, dim, out);
    case IndexKeyFormat::Bf16:
      return widen_bf16(page + 2 * first, dim, out);
    case IndexKeyFormat::Fp8:
      return widen_e4m3(page + first, page + int64_t{g.page_tokens} * dim + int64_t{4} * slot, dim, dim, out);
    case IndexKeyFormat::None:
      return;
  }
}

}  // namespace
}  // namespace plumb::cpu
