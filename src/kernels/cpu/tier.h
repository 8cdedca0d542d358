// Tier: the matrix product of one instruction set. Everything above it (Linear, Mlp, Moe, Router) is written once.
//
// A product is computed in groups: a few strips of outputs (strip16.h) times a chunk of rows. Every output is summed
// over k in one order whatever the number of rows, so a row's bits depend neither on the other rows nor on how many
// there are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/strip16.h"

namespace plumb::cpu {

inline constexpr int kTileRows = 12;    // rows packed side by side
inline constexpr int kChunkRows = 240;  // rows of one group at most: their sums stay in the first-level cache
inline constexpr int kGroupStrips = 8;  // strips of one group at most
inline constexpr int kGroupFloats = kChunkRows * 2 * kStrip;

// Rows packed for a tier: tiles of 12 rows (the last one has what is left, R), a tile [k][R], where a bf16 tier has
// pairs along k for elements. k is padded with zeros to a multiple of 4.
struct PackJob {
  const float* x = nullptr;
  int64_t ld = 0;
  const int32_t* index = nullptr;  // rows of x to take; null: 0, 1, 2, ...
  int64_t k = 0;
  int rows = 0;
  int tile_begin = 0, tile_end = 0;  // the tiles to write
  std::byte* out = nullptr;
};

// rows <= kChunkRows. out[row * 16 * strips + output] = finished sum, scales applied, bias not.
struct GroupJob {
  const StripMatrix& w;
  const std::byte* packed = nullptr;  // the chunk's first tile
  int rows = 0;
  int64_t strip = 0;
  int strips = 0;
  float* out = nullptr;  // 64-byte aligned; kGroupFloats
};

// h = silu(gate) * up, n elements. With `round` gate, up, silu and product are rounded to bf16 (model.md 3.10).
struct GateJob {
  const float* gate = nullptr;
  const float* up = nullptr;
  float* h = nullptr;
  int64_t n = 0;
  bool round = false;
};

struct Tier {
  int64_t element_bytes = 4;  // of packed rows
  int (*group_strips)(Coding coding, int rows) = nullptr;
  void (*pack)(const PackJob& job) = nullptr;
  void (*group)(const GroupJob& job) = nullptr;
  void (*gate)(const GateJob& job) = nullptr;

  int64_t packed_row_bytes(int64_t k) const { return (k + 3) / 4 * 4 * element_bytes; }
};
extern const Tier kTierGeneric;
#if defined(__x86_64__)
extern const Tier kTierAvx2;
extern const Tier kTierAvx512;
extern const Tier kTierAvx512Bf16;
#endif

}  // namespace plumb::cpu
