// Rows of the cache that one block of attend_cluster attends to, a tile of 64 at a time, into shared memory as bf16.
#pragma once

#include "kernels/cuda/mma/attend.cuh"
#include "kernels/cuda/mma/wgmma.cuh"

namespace plumb::cuda::mla {

inline constexpr int kClusterRank = 512;
inline constexpr int kGatherThreads = 2 * kGroupThreads;

struct TileLayout {  // of 64 rows in shared memory: blocks of 64 elements of every row, the rope part's the last
  static constexpr int kBlock = kKeys * 128;
  static constexpr int kRope = kClusterRank / 64 * kBlock;
  static constexpr int kBytes = kRope + kBlock;
};

// A scale times 2^30 as two bf16, high and low half: more than bf16's 8 bits, so that what is multiplied by it is
// rounded once but for 2^-17 of itself.
__device__ inline uint32_t split_scale(float scale) {
  const float x = scale * 0x1p30f;
  return pack_bf16(x - low_bf16(pack_bf16(x, x)), x);
}
// Four E4M3 codes times the scale, as bf16 in their order. Exponent and mantissa bits moved into a bf16 are the value
// times 2^-120, denormals included. Codes of NaN as decode_e4m3. `high`, `low`: halves of split_scale, twice each.
__device__ inline uint2 scaled_codes(uint32_t word, uint32_t high, uint32_t low) {
  const uint32_t even = (word << 8 & 0x80008000u) | (word << 4 & 0x07f007f0u);
  const uint32_t odd = (word & 0x80008000u) | (word >> 4 & 0x07f007f0u);
  const auto scaled = [&](uint32_t pair) {
    return multiply_bf16x2(add_product_bf16x2(pair, high, multiply_bf16x2(pair, low)), 0x6c806c80u);  // 2^90
  };
  const uint32_t e = scaled(even), o = scaled(odd);
  return {__byte_perm(e, o, 0x5410), __byte_perm(e, o, 0x7632)};
}

// One warp's eight of the 64 rows. Lanes know where rows lie for four tiles (lane 8 i + j: row j of tile i of the
// four); the pages of the next four and the positions behind those are on their way.
// `wide`: rows of the cache begin at multiples of 16 bytes, else of four.
template <bool fp8, bool wide>
struct Gather {
  static constexpr int kEach = 8, kKnown = 32 / kEach;
  static_assert(kEach * kGatherThreads / 32 == kKeys, "and a byte of the mask a warp");
  static constexpr int kRopeAt = fp8 ? kClusterRank + kClusterRank / kLatentTile * 4 : 2 * kClusterRank;
  const Attend& attend;
  const Paging& paging;
  const int32_t* topk;     // the row's, from this block's part on
  const uint8_t* cache;    // at this lane's 16 bytes of a row
  int32_t sequence, last;  // the row's, and its position
  int count;               // of `topk`
  int row_bytes, warp, lane;
  int32_t now = -1;                  // rows of the cache
  int32_t next = -1, next_page = 0;  // positions, and their pages
  int32_t later = -1;                // positions
  // FP8, of the tile that is stored next: 16 latent elements of each row, the scale of chunk lane % 4 of row lane / 4.
  uint4 codes[fp8 ? kEach : 1]{};
  float scale = 0;
  int32_t scale_row = -1;

  __device__ int32_t index(int batch) const {
    const int at = (batch * kKnown + lane / kEach) * kKeys + warp * kEach + lane % kEach;
    const int32_t i = at < count ? topk[at] : -1;
    return i <= last ? i : -1;
  }
  __device__ int32_t page(int32_t i) const { return i < 0 ? 0 : page_at(paging, sequence, i); }
  __device__ int32_t row(int32_t i, int32_t page) const {
    return i < 0 ? -1 : page * paging.page_tokens + i % paging.page_tokens;
  }
  __device__ void look_up(int tile) {
    if (tile % kKnown != 0) return;
    now = row(next, next_page);
    next = later, next_page = page(later);
    later = index(tile / kKnown + 2);
  }
  // Row `i` of the tile; of a row that is not there the cache's first, whose scale counts as zero.
  __device__ int32_t row_of(int tile, int i) const { return __shfl_sync(~0u, now, tile % kKnown * kEach + i); }
  __device__ const uint8_t* at(int32_t row) const { return cache + static_cast<int64_t>(max(row, 0)) * row_bytes; }
  __device__ uint4 load(int32_t r) const {
    if constexpr (wide) {  // where it stands: beside the decoding of what was loaded before
      uint4 v;
      asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(at(r)));
      return v;
    }
    const auto* words = reinterpret_cast<const uint32_t*>(at(r));
    return {__ldg(words), __ldg(words + 1), __ldg(words + 2), __ldg(words + 3)};
  }
  __device__ void load_scale(int tile) {
    scale_row = row_of(tile, lane / 4);
    scale = __ldg(reinterpret_cast<const float*>(at(scale_row) - lane * 16 + kClusterRank) + lane % 4);
  }
  __device__ void start() {
    const int32_t first = index(0);
    next = index(1), later = index(2);
    now = row(first, page(first)), next_page = page(next);
    if constexpr (fp8) {
      load_scale(0);
#pragma unroll
      for (int i = 0; i < kEach; ++i) codes[i] = load(row_of(0, i));
    }
  }

  // Tile `tile` to `to`, and the warp's present rows, a bit each, to mask[warp]. The tile is there after finish(); the
  // next one's FP8 codes are asked for.
  __device__ void begin(int tile, uint32_t to, uint8_t* mask) {
    if (!fp8 && tile > 0) look_up(tile);
    const unsigned there = __ballot_sync(~0u, now >= 0) >> (tile % kKnown * kEach);
    if (lane == 0) mask[warp] = static_cast<uint8_t>(there);
    const int first_key = warp * kEach;
    copy_rope(to, first_key, tile);
    if constexpr (fp8) {
      commit_copies();
      const uint32_t splits = split_scale(scale_row < 0 ? 0.0f : scale);
      uint32_t of_key[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) of_key[i] = __shfl_sync(~0u, splits, i * 4 + lane / 8);
      look_up(tile + 1);
      load_scale(tile + 1);
      // Lanes 4 ... 7 of eight write their second piece first: so all banks are busy.
      const bool odd = lane / 4 % 2 != 0;
      const uint32_t piece =
          to + static_cast<uint32_t>(lane / 4 * TileLayout::kBlock + first_key * 128 + lane % 4 * 32 + (odd ? 16 : 0));
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const uint32_t high = __byte_perm(of_key[i], 0, 0x1010), low = __byte_perm(of_key[i], 0, 0x3232);
        const uint4 c = codes[i];
        codes[i] = load(row_of(tile + 1, i));
        const uint2 a = scaled_codes(odd ? c.z : c.x, high, low), b = scaled_codes(odd ? c.w : c.y, high, low);
        const uint2 d = scaled_codes(odd ? c.x : c.z, high, low), e = scaled_codes(odd ? c.y : c.w, high, low);
        const uint32_t place = piece ^ static_cast<uint32_t>(i * 16);  // swizzled
        store_shared(place + i * 128, {a.x, a.y, b.x, b.y});
        store_shared((place ^ 16u) + i * 128, {d.x, d.y, e.x, e.y});
        if (i % 2 == 1) __syncwarp();  // else all loads would be put behind all of the decoding
      }
    } else {
      copy_latents(to, first_key, tile);
      commit_copies();
    }
  }
  __device__ void finish() const {
    wait_for_copies();
    publish_shared();
  }

  // A piece of 16 bytes, of which `words` of four are there: zeros behind them.
  __device__ void copy_piece(uint32_t to, const uint8_t* from, int words) const {
    if constexpr (wide) {
      copy_async_16(to, from, words > 0);
    } else {
#pragma unroll
      for (int word = 0; word < 4; ++word)
        copy_async_4(to + word * 4, word < words ? from + word * 4 : from, word < words);
    }
  }
  __device__ void copy_rope(uint32_t to, int first_key, int tile) const {
    const int piece = lane % 8;
    const int words = min(4, attend.rope / 2 - piece * 4);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = lane / 8 + 4 * j;
      const uint8_t* row = at(row_of(tile, key)) - lane * 16;
      copy_piece(swizzled(to + TileLayout::kRope, first_key + key, piece), words > 0 ? row + kRopeAt + piece * 16 : row,
                 words);
    }
  }
  __device__ void copy_latents(uint32_t to, int first_key, int tile) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int32_t r = row_of(tile, i);
#pragma unroll
      for (int j = 0; j < 2; ++j)
        copy_piece(
            swizzled(to + static_cast<uint32_t>((lane / 8 + 4 * j) * TileLayout::kBlock), first_key + i, lane % 8),
            at(r) + j * 512, r < 0 ? 0 : 4);
    }
  }
};

}  // namespace plumb::cuda::mla
