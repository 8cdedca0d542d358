// Products in f32, included by one file an instruction set after it has defined, in namespace plumb::cpu::isa:
//   using V       a GCC vector of floats as wide as a register; kWidth its lanes
//   V fma(V, V, V)  the multiply-add of the set, fused or not
//   V e2m1(U)       value of a code in the lowest 4 bits of each 32-bit lane (other bits clear)
//   kRegisters      vector registers
//
// Order of a sum, whatever the number of rows: blocks of 128 k, inside a block k in order, then total += block. A
// weight is decoded to f32 with its block scale first (one rounding, none for NVFP4); row and global scales multiply
// the total.
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/gate.h"
#include "kernels/cpu/tier.h"

namespace plumb::cpu {
namespace {
namespace isa {

using U = uint32_t __attribute__((vector_size(kWidth * 4)));
using I = int32_t __attribute__((vector_size(kWidth * 4)));
using Bytes = uint8_t __attribute__((vector_size(kWidth * 4)));
constexpr int kParts = kStrip / kWidth;  // registers of 16 lanes

inline U load_words(const std::byte* p) { return *reinterpret_cast<const U*>(p); }
inline V load_floats(const float* p) { return *reinterpret_cast<const V*>(p); }
inline void store_floats(float* p, V v) { *reinterpret_cast<V*>(p) = v; }
inline V splat(float x) { return V{} + x; }

// Sixteen-bit float in the upper half of each lane -> f32.
inline V f16_value(U upper) {
  const U magnitude = (upper & 0x7fff0000u) >> 3;
  const V scaled = V(magnitude) * 0x1p112f;
  const U special = U(magnitude >= 0x0f800000u) & 0x7f800000u;  // infinity and NaN
  return V(U(scaled) | special | (upper & 0x80000000u));
}

// E4m3 code in the upper byte of each lane, lower bits clear below bit 24 -> f32. Exact, subnormals and NaN included.
inline V e4m3_value(U upper) {
  const U magnitude = (upper & 0x7f000000u) >> 4;
  const V scaled = V(magnitude) * 0x1p120f;
  const U nan = U(magnitude == 0x07f00000u) & 0x7fc00000u;
  return V(U(scaled) | nan | (upper & 0x80000000u));
}

// Byte i of 8 consecutive codes of each 128-bit lane, the first or the second 8, goes to the upper byte of the lane's
// 16-bit word i; the lower byte is zero.
template <int half, size_t... i>
inline U widen(U codes, std::index_sequence<i...>) {
  return U(
      __builtin_shufflevector(Bytes{}, Bytes(codes), (i % 2 * kWidth * 4 + i / 16 * 16 + half * 8 + i % 16 / 2)...));
}
template <int half>
inline U widen(U codes) {
  return widen<half>(codes, std::make_index_sequence<kWidth * 4>{});
}

// 64 e4m3 codes arranged as in strip16.h -> [4][16] floats, each times `scale`.
inline void decode_e4m3(const std::byte* codes, float scale, float* out) {
  for (int part = 0; part < kParts; ++part) {
    const U word = load_words(codes + part * kWidth * 4);
    const U pair[2] = {widen<0>(word), widen<1>(word)};
    for (int h = 0; h < 2; ++h) {
      store_floats(out + 2 * h * kStrip + part * kWidth, e4m3_value(pair[h] << 16) * scale);
      store_floats(out + (2 * h + 1) * kStrip + part * kWidth, e4m3_value(pair[h] & 0xffff0000u) * scale);
    }
  }
}

// `words` vectors of pairs along k -> [2 words][16] floats.
template <Coding coding>
inline void decode_pairs(const std::byte* strip, int64_t words, float* out) {
  for (int64_t w = 0; w < words; ++w, strip += 64, out += 2 * kStrip) {
    for (int part = 0; part < kParts; ++part) {
      const U pair = load_words(strip + part * kWidth * 4);
      const U low = pair << 16, high = pair & 0xffff0000u;
      store_floats(out + part * kWidth, coding == Coding::Bf16 ? V(low) : f16_value(low));
      store_floats(out + kStrip + part * kWidth, coding == Coding::Bf16 ? V(high) : f16_value(high));
    }
  }
}

// One group of 64 k of NVFP4 -> [64][16] floats, block scales applied.
inline void decode_fp4_group(const std::byte* group, float* out) {
  alignas(64) float scale[4 * kStrip];
  decode_e4m3(group + 512, 1.0f, scale);
  for (int v = 0; v < 8; ++v, group += 64, out += 8 * kStrip) {
    for (int part = 0; part < kParts; ++part) {
      const V factor = load_floats(scale + v / 2 * kStrip + part * kWidth);
      const U word = load_words(group + part * kWidth * 4);
      for (int k = 0; k < 8; ++k)
        store_floats(out + k * kStrip + part * kWidth, e2m1((word >> (4 * (k / 2) + 16 * (k % 2))) & 15u) * factor);
    }
  }
}

// One block of 128 k of one strip -> panel [k][16].
void decode_block(const StripMatrix& w, int64_t s, int64_t kb, float* panel) {
  const int64_t k0 = kb * kBlockK, k = std::min<int64_t>(kBlockK, w.k - k0);
  const std::byte* strip = w.strip(s);
  switch (w.coding) {
    case Coding::F32:
      std::memcpy(panel, strip + k0 * 64, static_cast<size_t>(k * 64));
      break;
    case Coding::F16:
      decode_pairs<Coding::F16>(strip + k0 * 32, ceil_div(k, 2), panel);
      break;
    case Coding::Bf16:
      decode_pairs<Coding::Bf16>(strip + k0 * 32, ceil_div(k, 2), panel);
      break;
    case Coding::E4m3: {
      const float scale = w.block_scale != nullptr ? w.block_scale[s * w.k_blocks() + kb] : 1.0f;
      for (int64_t q = 0; q < ceil_div(k, 4); ++q)
        decode_e4m3(strip + (k0 / 4 + q) * 64, scale, panel + q * 4 * kStrip);
      break;
    }
    case Coding::E2m1:
      for (int64_t g = 0; g < ceil_div(k, kFp4GroupK); ++g)
        decode_fp4_group(strip + (k0 / kFp4GroupK + g) * kFp4GroupBytes, panel + g * kFp4GroupK * kStrip);
      break;
  }
}

struct Block {
  const float* x = nullptr;  // [k][x_stride]
  int64_t x_stride = 0;
  const float* panel = nullptr;  // [strip][kBlockK][16]
  int k = 0;
  float* total = nullptr;  // [rows][total_ld]
  int64_t total_ld = 0;
};

template <int R, int S>
void dot_block(const Block& b) {
  V sum[R][S][kParts];
  for (auto& row : sum)
    for (auto& strip : row)
      for (auto& lanes : strip) lanes = V{};
  const float* x = b.x;
  const float* w = b.panel;
  for (int k = 0; k < b.k; ++k, x += b.x_stride, w += kStrip) {
    V weights[S][kParts];
#pragma GCC unroll 16
    for (int s = 0; s < S; ++s)
#pragma GCC unroll 16
      for (int part = 0; part < kParts; ++part)
        weights[s][part] = load_floats(w + s * kBlockK * kStrip + part * kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V value = splat(x[r]);
#pragma GCC unroll 16
      for (int s = 0; s < S; ++s)
#pragma GCC unroll 16
        for (int part = 0; part < kParts; ++part) sum[r][s][part] = fma(weights[s][part], value, sum[r][s][part]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) {
      for (int part = 0; part < kParts; ++part) {
        float* total = b.total + r * b.total_ld + s * kStrip + part * kWidth;
        store_floats(total, load_floats(total) + sum[r][s][part]);
      }
    }
  }
}

// Strips and rows at once: as many sums as there are registers for, beside the weights and a row's value.
constexpr int kStrips = kRegisters / kParts >= 32 ? 2 : 1;
constexpr int kRows = kRegisters / kParts >= 32 ? 12 : kRegisters / kParts >= 8 ? 6 : 3;

using BlockFn = void (*)(const Block&);
template <int S, int... R>
constexpr std::array<BlockFn, sizeof...(R) + 1> block_table(std::integer_sequence<int, R...>) {
  return {nullptr, dot_block<R + 1, S>...};
}
template <int S>
inline constexpr auto kBlockTable = block_table<S>(std::make_integer_sequence<int, kRows>{});

template <int S>
void multiply(const GroupJob& job, int strip) {
  alignas(64) float panel[S * kBlockK * kStrip];
  const int64_t ld = job.strips * kStrip;
  const int64_t k_padded = ceil_div(job.w.k, 4) * 4;
  float* out = job.out + strip * kStrip;
  for (int r = 0; r < job.rows; ++r) std::memset(out + r * ld, 0, S * kStrip * sizeof(float));
  for (int64_t kb = 0; kb < job.w.k_blocks(); ++kb) {
    const int64_t k0 = kb * kBlockK;
    for (int s = 0; s < S; ++s) decode_block(job.w, job.strip + strip + s, kb, panel + s * kBlockK * kStrip);
    for (int tile = 0; tile < job.rows; tile += kTileRows) {
      const int rows = std::min(kTileRows, job.rows - tile);
      const float* x = reinterpret_cast<const float*>(job.packed) + tile * k_padded + k0 * rows;
      for (int r = 0; r < rows; r += kRows) {
        kBlockTable<S>[static_cast<size_t>(std::min(kRows, rows - r))](
            {.x = x + r,
             .x_stride = rows,
             .panel = panel,
             .k = static_cast<int>(std::min<int64_t>(kBlockK, job.w.k - k0)),
             .total = out + (tile + r) * ld,
             .total_ld = ld});
      }
    }
  }
}

void group(const GroupJob& job) {
  for (int s = 0; s < job.strips;) {
    if (kStrips == 2 && job.strips - s >= 2)
      multiply<kStrips>(job, s), s += 2;
    else
      multiply<1>(job, s), s += 1;
  }
  if (job.w.row_scale == nullptr && job.w.global_scale == 1.0f) return;
  for (int r = 0; r < job.rows; ++r) {
    float* out = job.out + static_cast<int64_t>(r) * job.strips * kStrip;
    for (int i = 0; i < job.strips * kStrip; ++i)
      out[i] *= job.w.row_scale != nullptr ? job.w.row_scale[job.strip * kStrip + i] : job.w.global_scale;
  }
}

int group_strips(Coding, int) { return kStrips; }

void pack(const PackJob& job) {
  const int64_t k = ceil_div(job.k, 4) * 4;
  for (int tile = job.tile_begin; tile < job.tile_end; ++tile) {
    const int first = tile * kTileRows;
    const int rows = std::min(kTileRows, job.rows - first);
    float* out = reinterpret_cast<float*>(job.out) + first * k;
    for (int r = 0; r < rows; ++r) {
      const float* x = job.x + (job.index != nullptr ? job.index[first + r] : first + r) * job.ld;
      for (int64_t i = 0; i < job.k; ++i) out[i * rows + r] = x[i];
      for (int64_t i = job.k; i < k; ++i) out[i * rows + r] = 0.0f;
    }
  }
}

}  // namespace isa
}  // namespace
}  // namespace plumb::cpu
