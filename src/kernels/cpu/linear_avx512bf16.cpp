// Products by vdpbf16ps: activations rounded to bf16, weights BF16, FP8 or NVFP4.
//
// Order of a sum, whatever the number of rows. BF16 and FP8: blocks of 128 k; in a block pairs of k in order, each pair
// as vdpbf16ps adds it; then total = fma(block, scale, total). NVFP4: the same with blocks of 16 k, the unit of its
// scales. Row and global scales multiply the total. The instruction flushes denormals, inputs and sums.
#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/gate.h"
#include "kernels/cpu/tier.h"

namespace plumb::cpu {
namespace {

constexpr int kPairs = kBlockK / 2;
constexpr int64_t kPanelStrip = kPairs * 64;  // bytes of one strip's decoded block of 128 k
// Weights are fetched into the second-level cache so many bytes ahead. Measured on a Zen 4 with one row on one core, of
// 512 ... 4096: BF16 best at 1024 (31 against 26 GB/s at 2048), FP8 the same everywhere, NVFP4 best at 2048 (26 against
// 18 at 1024). Into the first level, whose few buffers the loads themselves need, FP8 and NVFP4 lose a third.
constexpr int kAheadBf16 = 1024;
constexpr int kAhead = 2048;

__m512 dot_pair(__m512 sum, __m512i w, __m512i x) { return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x); }
__m512i load(const void* p) { return _mm512_load_si512(p); }
void prefetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

// bf16 of an e4m3 magnitude code; every e4m3 value is one, subnormals and NaN included.
constexpr uint16_t bf16_of_e4m3(int code) {
  const int exponent = code >> 3, mantissa = code & 7;
  if (code == 0x7f) return 0x7fc0;
  if (exponent != 0) return static_cast<uint16_t>((exponent + 120) << 7 | mantissa << 4);
  if (mantissa == 0) return 0;
  const int lead = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
  return static_cast<uint16_t>((118 + lead) << 7 | (mantissa - (1 << lead)) << (7 - lead));
}
template <int shift>
constexpr std::array<uint8_t, 128> e4m3_bytes() {
  std::array<uint8_t, 128> bytes{};
  for (int code = 0; code < 128; ++code)
    bytes[static_cast<size_t>(code)] = static_cast<uint8_t>(bf16_of_e4m3(code) >> shift);
  return bytes;
}
alignas(64) constexpr std::array<uint8_t, 128> kE4m3Upper = e4m3_bytes<8>();
alignas(64) constexpr std::array<uint8_t, 128> kE4m3Lower = e4m3_bytes<0>();
// bf16 of the e2m1 codes, twice, since vpermw looks at five bits of an index.
alignas(64) constexpr uint16_t kE2m1[32] = {0,      0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                            0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
                                            0,      0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                            0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

// 64 e4m3 codes to two vectors [16 outputs][2 k] of bf16. The look-up ignores the sign, which goes to the upper byte.
class E4m3 {
 public:
  void decode(__m512i codes, __m512i& first, __m512i& second) const {
    const __m512i lower = _mm512_permutex2var_epi8(lower0_, codes, lower1_);
    const __m512i magnitude = _mm512_permutex2var_epi8(upper0_, codes, upper1_);
    const __m512i upper = _mm512_ternarylogic_epi32(magnitude, codes, sign_, 0xf8);  // magnitude | (codes & sign)
    first = _mm512_unpacklo_epi8(lower, upper);
    second = _mm512_unpackhi_epi8(lower, upper);
  }
  // NVFP4's scales of four blocks of 16 k, [4][16 outputs] as float.
  void decode_scales(const std::byte* codes, __m512 (&scale)[4]) const {
    __m512i pair[2];
    decode(load(codes), pair[0], pair[1]);
    for (int i = 0; i < 2; ++i) {
      scale[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(pair[i], 16));
      scale[2 * i + 1] =
          _mm512_castsi512_ps(_mm512_and_si512(pair[i], _mm512_set1_epi32(static_cast<int>(0xffff0000))));
    }
  }

 private:
  __m512i upper0_ = load(kE4m3Upper.data()), upper1_ = load(kE4m3Upper.data() + 64);
  __m512i lower0_ = load(kE4m3Lower.data()), lower1_ = load(kE4m3Lower.data() + 64);
  __m512i sign_ = _mm512_set1_epi8(static_cast<char>(0x80));
};

// Keeps a loaded vector in its register: loading it again for every use would cost more than the register.
inline __m512i held(__m512i v) {
  asm("" : "+v"(v));
  return v;
}

// Look-up of nibble `i` of each 16-bit word.
inline __m512i fp4_value(__m512i words, int i, __m512i values) {
  return _mm512_permutexvar_epi16(i == 0 ? words : _mm512_srli_epi16(words, static_cast<unsigned>(4 * i)), values);
}

// Where a block of 128 k of S strips is, as bf16 [pairs][16][2] each, and the rows it is multiplied with.
struct Block {
  const uint32_t* x = nullptr;  // [pairs][x_stride]: a row's pair a word
  int64_t x_stride = 0;
  const std::byte* w = nullptr;
  int64_t w_stride = 0;
  int pairs = 0;
  const float* scale = nullptr;  // one a strip; NVFP4: [strip][block of 16 k][16]
  float* total = nullptr;        // [rows][total_ld]
  int64_t total_ld = 0;
};

// R rows times S strips.
template <int R, int S>
void dot_block(const Block& b) {
  __m512 sum[R][S];
  for (auto& row : sum)
    for (auto& lane : row) lane = _mm512_setzero_ps();
  const uint32_t* x = b.x;
  const std::byte* w = b.w;
  for (int p = 0; p < b.pairs; ++p, w += 64, x += b.x_stride) {
    __m512i weights[S];
#pragma GCC unroll 16
    for (int s = 0; s < S; ++s) {
      weights[s] = load(w + s * b.w_stride);
      if constexpr (R <= 6) prefetch(w + s * b.w_stride + kAheadBf16);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512i pair = _mm512_set1_epi32(static_cast<int>(x[r]));
#pragma GCC unroll 16
      for (int s = 0; s < S; ++s) sum[r][s] = dot_pair(sum[r][s], weights[s], pair);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int s = 0; s < S; ++s) {
      float* total = b.total + r * b.total_ld + s * kStrip;
      _mm512_store_ps(total, _mm512_fmadd_ps(sum[r][s], _mm512_set1_ps(b.scale[s]), _mm512_load_ps(total)));
    }
  }
}

// The same for NVFP4: sums closed every 16 k.
template <int R, int S>
void dot_block_fp4(const Block& b) {
  __m512 total[R][S];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int s = 0; s < S; ++s) total[r][s] = _mm512_load_ps(b.total + r * b.total_ld + s * kStrip);
  const uint32_t* x = b.x;
  const std::byte* w = b.w;
  const float* scale = b.scale;
  for (int block = 0; block < b.pairs / 8; ++block, scale += kStrip) {
    __m512 sum[R][S];
    for (auto& row : sum)
      for (auto& lane : row) lane = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int p = 0; p < 8; ++p, w += 64, x += b.x_stride) {
      __m512i weights[S];
#pragma GCC unroll 16
      for (int s = 0; s < S; ++s) weights[s] = load(w + s * b.w_stride);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const __m512i pair = _mm512_set1_epi32(static_cast<int>(x[r]));
#pragma GCC unroll 16
        for (int s = 0; s < S; ++s) sum[r][s] = dot_pair(sum[r][s], weights[s], pair);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int s = 0; s < S; ++s)
        total[r][s] = _mm512_fmadd_ps(sum[r][s], _mm512_load_ps(scale + s * kPairs / 8 * kStrip), total[r][s]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int s = 0; s < S; ++s) _mm512_store_ps(b.total + r * b.total_ld + s * kStrip, total[r][s]);
}

using BlockFn = void (*)(const Block&);
template <int S, int... R>
constexpr std::array<BlockFn, sizeof...(R) + 1> block_table(std::integer_sequence<int, R...>) {
  return {nullptr, dot_block<R + 1, S>...};
}
template <int S, int... R>
constexpr std::array<BlockFn, sizeof...(R) + 1> fp4_table(std::integer_sequence<int, R...>) {
  return {nullptr, dot_block_fp4<R + 1, S>...};
}
// Rows at once for S strips: as many sums as there are registers for.
template <int S>
inline constexpr int kRows = S == 4 ? 6 : 12;
template <int S>
inline constexpr int kRowsFp4 = S == 4 ? 3 : 6;
template <int S>
inline constexpr auto kBlockTable = block_table<S>(std::make_integer_sequence<int, kRows<S>>{});
template <int S>
inline constexpr auto kFp4Table = fp4_table<S>(std::make_integer_sequence<int, kRowsFp4<S>>{});

// Some strips of a weight, all its k, times the rows of a job.
struct Span {
  const StripMatrix& w;
  const std::byte* first = nullptr;  // the first strip
  const uint32_t* x = nullptr;
  int rows = 0;
  int64_t strip = 0;
  float* total = nullptr;
  int64_t total_ld = 0;
  int64_t pairs() const { return ceil_div(w.k, 4) * 2; }
};

template <int S>
void multiply_tiles(const Span& span, Block block, int64_t k_block) {
  const bool fp4 = span.w.coding == Coding::E2m1;
  const int most = fp4 ? kRowsFp4<S> : kRows<S>;
  for (int tile = 0; tile < span.rows; tile += kTileRows) {
    const int rows = std::min(kTileRows, span.rows - tile);
    const uint32_t* x = span.x + tile * span.pairs() + k_block * kPairs * rows;
    block.x_stride = rows;
    for (int r = 0; r < rows; r += most) {
      const size_t count = static_cast<size_t>(std::min(most, rows - r));
      block.x = x + r;
      block.total = span.total + (tile + r) * span.total_ld;
      (fp4 ? kFp4Table<S>[count] : kBlockTable<S>[count])(block);
    }
  }
}

template <int S>
void multiply_bf16(const Span& span) {
  constexpr float kOnes[4] = {1, 1, 1, 1};
  const int64_t pairs = ceil_div(span.w.k, 2);
  for (int64_t kb = 0; kb < span.w.k_blocks(); ++kb) {
    multiply_tiles<S>(span,
                      {.w = span.first + kb * kPanelStrip,
                       .w_stride = span.w.strip_bytes,
                       .pairs = static_cast<int>(std::min<int64_t>(kPairs, pairs - kb * kPairs)),
                       .scale = kOnes,
                       .total_ld = span.total_ld},
                      kb);
  }
}

float fp8_scale(const Span& span, int s, int64_t kb) {
  return span.w.block_scale != nullptr ? span.w.block_scale[(span.strip + s) * span.w.k_blocks() + kb] : 1.0f;
}

template <int S>
void multiply_fp8(const Span& span) {
  alignas(64) std::byte panel[S * kPanelStrip];
  const E4m3 table;
  for (int64_t kb = 0; kb < span.w.k_blocks(); ++kb) {
    const int quads = static_cast<int>(std::min<int64_t>(kPairs / 2, span.pairs() / 2 - kb * (kPairs / 2)));
    float scale[S];
    for (int s = 0; s < S; ++s) {
      const std::byte* codes = span.first + s * span.w.strip_bytes + kb * (kPanelStrip / 2);
      std::byte* out = panel + s * kPanelStrip;
      for (int q = 0; q < quads; ++q, codes += 64, out += 128) {
        __m512i first, second;
        table.decode(load(codes), first, second);
        prefetch(codes + kAhead);
        _mm512_store_si512(out, first);
        _mm512_store_si512(out + 64, second);
      }
      scale[s] = fp8_scale(span, s, kb);
    }
    multiply_tiles<S>(
        span, {.w = panel, .w_stride = kPanelStrip, .pairs = 2 * quads, .scale = scale, .total_ld = span.total_ld}, kb);
  }
}

template <int S>
void multiply_fp4(const Span& span) {
  alignas(64) std::byte panel[S * kPanelStrip];
  alignas(64) float scale[S][kPairs / 8][kStrip];
  const E4m3 table;
  const __m512i values = load(kE2m1);
  const int64_t groups = ceil_div(span.w.k, kFp4GroupK);
  for (int64_t kb = 0; kb < span.w.k_blocks(); ++kb) {
    for (int s = 0; s < S; ++s) {
      for (int64_t g = 2 * kb; g < std::min(groups, 2 * kb + 2); ++g) {
        const std::byte* codes = span.first + s * span.w.strip_bytes + g * kFp4GroupBytes;
        std::byte* out = panel + s * kPanelStrip + (g - 2 * kb) * (kPanelStrip / 2);
        for (int v = 0; v < 8; ++v, codes += 64, out += 256) {
          const __m512i words = held(load(codes));
          prefetch(codes + kAhead);
          for (int i = 0; i < 4; ++i) _mm512_store_si512(out + i * 64, fp4_value(words, i, values));
        }
        __m512 four[4];
        table.decode_scales(codes, four);
        for (int i = 0; i < 4; ++i) _mm512_store_ps(scale[s][(g - 2 * kb) * 4 + i], four[i]);
      }
    }
    multiply_tiles<S>(span,
                      {.w = panel,
                       .w_stride = kPanelStrip,
                       .pairs = static_cast<int>(std::min<int64_t>(kPairs, span.w.k / 2 - kb * kPairs)),
                       .scale = &scale[0][0][0],
                       .total_ld = span.total_ld},
                      kb);
  }
}

// How far ahead of `offset` in each of S strips to fetch: from a strip's last bytes on into the strip that is S
// further, which is read next. Without this, every strip would begin with misses: 5 % of NVFP4's bytes at K = 4096.
template <int S>
int64_t fetch_ahead(const StripMatrix& w, int64_t offset) {
  return offset + kAhead < w.strip_bytes ? kAhead : kAhead + (S - 1) * w.strip_bytes;
}

// Few rows: codes are looked up in registers, R rows times S strips at once.
template <int R, int S>
void rows_fp8(const Span& span) {
  const E4m3 table;
  for (int64_t kb = 0; kb < span.w.k_blocks(); ++kb) {
    const int quads = static_cast<int>(std::min<int64_t>(kPairs / 2, span.pairs() / 2 - kb * (kPairs / 2)));
    const std::byte* codes = span.first + kb * (kPanelStrip / 2);
    const int64_t ahead = fetch_ahead<S>(span.w, kb * (kPanelStrip / 2));
    const uint32_t* x = span.x + kb * kPairs * R;
    __m512 sum[R][S];
    for (auto& row : sum)
      for (auto& lane : row) lane = _mm512_setzero_ps();
    for (int q = 0; q < quads; ++q, codes += 64, x += 2 * R) {
#pragma GCC unroll 8
      for (int s = 0; s < S; ++s) {
        __m512i first, second;
        table.decode(held(load(codes + s * span.w.strip_bytes)), first, second);
        prefetch(codes + s * span.w.strip_bytes + ahead);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          sum[r][s] = dot_pair(sum[r][s], first, _mm512_set1_epi32(static_cast<int>(x[r])));
          sum[r][s] = dot_pair(sum[r][s], second, _mm512_set1_epi32(static_cast<int>(x[R + r])));
        }
      }
    }
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) {
      const __m512 scale = _mm512_set1_ps(fp8_scale(span, s, kb));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float* total = span.total + r * span.total_ld + s * kStrip;
        _mm512_store_ps(total, _mm512_fmadd_ps(sum[r][s], scale, _mm512_load_ps(total)));
      }
    }
  }
}

template <int R, int S>
void rows_fp4(const Span& span) {
  const E4m3 table;
  const __m512i values = load(kE2m1);
  __m512 total[R][S];
  for (auto& row : total)
    for (auto& lane : row) lane = _mm512_setzero_ps();
  alignas(64) float scale[S][4][kStrip];
  const int blocks = static_cast<int>(span.w.k / 16);
  for (int block = 0; block < blocks; block += 4) {
    const std::byte* group = span.first + block / 4 * kFp4GroupBytes;
    const int64_t ahead = fetch_ahead<S>(span.w, block / 4 * kFp4GroupBytes);
    const uint32_t* x = span.x + block * 8 * R;
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
      __m512 four[4];
      table.decode_scales(group + s * span.w.strip_bytes + 512, four);
      prefetch(group + s * span.w.strip_bytes + 512 + ahead);
      for (int i = 0; i < 4; ++i) _mm512_store_ps(scale[s][i], four[i]);
    }
    const int count = std::min(4, blocks - block);
    for (int i = 0; i < count; ++i, x += 8 * R) {
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s) {
        const std::byte* codes = group + s * span.w.strip_bytes + i * 128;
        prefetch(codes + ahead);
        prefetch(codes + 64 + ahead);
        __m512 sum[R];
        for (auto& lane : sum) lane = _mm512_setzero_ps();
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m512i words = held(load(codes + half * 64));
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            const __m512i w = fp4_value(words, j, values);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
              sum[r] = dot_pair(sum[r], w, _mm512_set1_epi32(static_cast<int>(x[(half * 4 + j) * R + r])));
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) total[r][s] = _mm512_fmadd_ps(sum[r], _mm512_load_ps(scale[s][i]), total[r][s]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) _mm512_store_ps(span.total + r * span.total_ld + s * kStrip, total[r][s]);
}

// Few enough rows for registers. False: not these.
template <int S>
bool multiply_few(const Span& span) {
  if (span.w.coding == Coding::E4m3) {
    if (span.rows == 1) return rows_fp8<1, S>(span), true;
    if constexpr (S <= 4) {
      if (span.rows == 2) return rows_fp8<2, S>(span), true;
      if (span.rows == 3) return rows_fp8<3, S>(span), true;
      if (span.rows == 4) return rows_fp8<4, S>(span), true;
    }
  }
  if constexpr (S <= 4) {
    if (span.w.coding != Coding::E2m1) return false;
    if (span.rows == 1) return rows_fp4<1, S>(span), true;
    if (span.rows == 2) return rows_fp4<2, S>(span), true;
    if (span.rows == 3) return rows_fp4<3, S>(span), true;
    if (span.rows == 4) return rows_fp4<4, S>(span), true;
  }
  return false;
}

template <int S>
void multiply(const Span& span) {
  for (int r = 0; r < span.rows; ++r)
    for (int s = 0; s < S; ++s) _mm512_store_ps(span.total + r * span.total_ld + s * kStrip, _mm512_setzero_ps());
  if (multiply_few<S>(span)) return;
  if constexpr (S <= 4) {
    if (span.w.coding == Coding::E4m3) return multiply_fp8<S>(span);
    if (span.w.coding == Coding::E2m1) return multiply_fp4<S>(span);
    return multiply_bf16<S>(span);
  }
}

void scale_totals(const GroupJob& job) {
  const StripMatrix& w = job.w;
  if (w.row_scale == nullptr && w.global_scale == 1.0f) return;
  for (int s = 0; s < job.strips; ++s) {
    const __m512 scale = w.row_scale != nullptr ? _mm512_loadu_ps(w.row_scale + (job.strip + s) * kStrip)
                                                : _mm512_set1_ps(w.global_scale);
    for (int r = 0; r < job.rows; ++r) {
      float* total = job.out + (r * job.strips + s) * kStrip;
      _mm512_store_ps(total, _mm512_mul_ps(_mm512_load_ps(total), scale));
    }
  }
}

// Strips at once: the more streams, the better memory is used; the more rows, the fewer registers are left for strips.
int group_strips(Coding coding, int rows) {
  if (rows == 1) return coding == Coding::E4m3 ? 8 : 4;
  if (coding == Coding::E2m1) return rows == 2 ? 4 : 2;
  return rows <= kRows<4> ? 4 : 2;
}

void group(const GroupJob& job) {
  const int most = group_strips(job.w.coding, job.rows);
  for (int s = 0; s < job.strips;) {
    const int left = std::min(most, job.strips - s);
    const Span span{.w = job.w,
                    .first = job.w.strip(job.strip + s),
                    .x = reinterpret_cast<const uint32_t*>(job.packed),
                    .rows = job.rows,
                    .strip = job.strip + s,
                    .total = job.out + s * kStrip,
                    .total_ld = job.strips * kStrip};
    if (left >= 8)
      multiply<8>(span), s += 8;
    else if (left >= 4)
      multiply<4>(span), s += 4;
    else if (left >= 2)
      multiply<2>(span), s += 2;
    else
      multiply<1>(span), s += 1;
  }
  scale_totals(job);
}

// 32 floats from x[k], beyond `end` zeros, as 16 pairs.
__m512i pairs_at(const float* x, int64_t k, int64_t end) {
  const auto part = [&](int64_t from) {
    const int64_t left = end - from;
    const __mmask16 mask = static_cast<__mmask16>(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
    return _mm512_maskz_loadu_ps(mask, x + from);
  };
  return (__m512i)_mm512_cvtne2ps_pbh(part(k + 16), part(k));
}

void pack(const PackJob& job) {
  const int64_t pairs = ceil_div(job.k, 4) * 2;
  for (int tile = job.tile_begin; tile < job.tile_end; ++tile) {
    const int first = tile * kTileRows;
    const int rows = std::min(kTileRows, job.rows - first);
    uint32_t* out = reinterpret_cast<uint32_t*>(job.out) + first * pairs;
    for (int r = 0; r < rows; ++r) {
      const int64_t row = job.index != nullptr ? job.index[first + r] : first + r;
      const float* x = job.x + row * job.ld;
      for (int64_t p = 0; p < pairs; p += 16) {
        const int64_t count = std::min<int64_t>(16, pairs - p);
        alignas(64) uint32_t words[16];
        _mm512_store_si512(words, pairs_at(x, 2 * p, job.k));
        if (rows == 1)
          std::memcpy(out + p, words, static_cast<size_t>(count) * 4);
        else
          for (int64_t i = 0; i < count; ++i) out[(p + i) * rows + r] = words[i];
      }
    }
  }
}

}  // namespace

const Tier kTierAvx512Bf16{
    .element_bytes = 2, .group_strips = group_strips, .pack = pack, .group = group, .gate = gate_product};

}  // namespace plumb::cpu
#endif
