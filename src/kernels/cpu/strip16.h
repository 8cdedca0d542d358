// Layout::CpuStrip16: a weight [n, k] as strips of 16 output rows, so that a vector lane is an output and a lane's sum
// runs over k in order. The same numbers as in the file, only re-arranged; a last partial strip is filled with zeros.
//
// One strip, by element type (`n` counts 0 ... 15 inside the strip):
//   F32        [k][16] floats
//   BF16, F16  [k/2][16][2]: a 32-bit word holds two neighbours along k of one output
//   F8E4M3     [k/4][64 bytes]: byte 16 (n/4) + 8 h + 2 (n%4) + j is k = 4 b + 2 h + j. Looked up as the upper and the
//              lower byte of a bf16 and unpacked within 128-bit lanes, h = 0 and h = 1 are two vectors [16][2]
//   F4E2M1     [k/64] groups of 576 bytes: 8 x 64 bytes of codes, then 64 block scales. 32-bit word n of code vector b
//              holds k = 8 b + 2 q + j in its bits 16 j + 4 q. The scales of 4 blocks of 16 along k stand as F8E4M3
//              above
// Between strips there may be unused cache lines (StripMatrix::strip_bytes).
// After all strips: F8E4M3 has its scales as floats: [strips][k/128] for 128-wide blocks, else [strips][16].
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/kernel.h"
#include "ops/weight.h"

namespace plumb::cpu {

inline constexpr int kStrip = 16;      // outputs of a strip
inline constexpr int kBlockK = 128;    // sums are closed, and FP8 scales applied, every so many k
inline constexpr int kFp4GroupK = 64;  // k of one group of packed FP4
inline constexpr int64_t kFp4GroupBytes = 576;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How a strip's elements are coded.
enum class Coding : uint8_t { F32, F16, Bf16, E4m3, E2m1 };

// A prepared weight as kernels read it.
struct StripMatrix {
  Coding coding = Coding::F32;
  int64_t n = 0, k = 0;
  int64_t strips = 0;
  int64_t strip_bytes = 0;  // from one strip to the next
  const std::byte* data = nullptr;
  const float* block_scale = nullptr;  // [strips][k/128] or null
  const float* row_scale = nullptr;    // [strips][16] or null: multiplies a finished sum
  float global_scale = 1;              // multiplies a finished sum
  const float* bias = nullptr;         // [n] or null

  const std::byte* strip(int64_t s) const { return data + s * strip_bytes; }
  int64_t k_blocks() const { return ceil_div(k, kBlockK); }
};
bool strip16_supports(const Format& format);
size_t strip16_bytes(const EncodedMatrix& source);
// `weight` must have been prepared in this layout.
StripMatrix strip_matrix(const Weight& weight);

// What a conversion does for each strip: 16 rows, `words` 32-bit words of each, transposed to out[word][16], every
// vector of 16 words rearranged by `shuffle`.
enum class WordShuffle : uint8_t {
  None,
  E4m3,  // within each four words, 16-bit halves sorted: all lower ones first
  E2m1,  // within each word, even nibbles to the lower half, odd ones to the upper
};
struct TransposeJob {
  const std::byte* rows[kStrip] = {};  // any alignment
  int64_t words = 0;
  const std::byte* next = nullptr;  // 64 * words bytes that will be read next, or null
  std::byte* out = nullptr;         // 64-byte aligned
  int64_t group_vectors = 0;        // after so many vectors `group_gap` bytes of `out` are left out; 0: never
  int64_t group_gap = 0;
  WordShuffle shuffle = WordShuffle::None;
};
void transpose_words_generic(const TransposeJob& job);
void transpose_words_avx512(const TransposeJob& job);

}  // namespace plumb::cpu
