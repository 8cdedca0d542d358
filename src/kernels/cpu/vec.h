// As many floats at once as a register of the instruction set holds that the including file is compiled for. Included
// by files of one instruction set each, hence the unnamed namespace: no function of this header may be shared between
// them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace plumb::cpu {
namespace {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif
using Vec = float __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = uint16_t __attribute__((vector_size(2 * kLanes)));
using Bytes = uint8_t __attribute__((vector_size(kLanes)));

template <class T>
inline T load_as(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline Vec load(const float* from) { return load_as<Vec>(from); }
inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }
inline Vec splat(float value) { return Vec{} + value; }
inline Words splat(uint32_t value) { return Words{} + value; }
inline Vec as_vec(Words bits) { return std::bit_cast<Vec>(bits); }
inline Words as_words(Vec value) { return std::bit_cast<Words>(value); }
inline Vec select(Ints mask, Vec yes, Vec no) {
  return as_vec((as_words(yes) & std::bit_cast<Words>(mask)) | (as_words(no) & ~std::bit_cast<Words>(mask)));
}

// a * b + c, rounded once where the instruction set has it.
inline Vec madd(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// Lane i of the result is lane lane_of(i) of a and b in a row; `lane_of` holds nothing and is known at compile time.
template <class LaneOf, int... i>
inline Vec shuffle_lanes(Vec a, Vec b, LaneOf, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, LaneOf{}(i)...);
}
template <class LaneOf>
inline Vec shuffle(Vec a, Vec b, LaneOf lane_of) {
  return shuffle_lanes(a, b, lane_of, std::make_integer_sequence<int, kLanes>{});
}

// Sums of the lanes of four vectors, each in one fixed order: within quarters of four lanes, then the quarters.
inline void sum_lanes4(Vec a, Vec b, Vec c, Vec d, float* out) {
  constexpr auto kLow = [](int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * kLanes; };
  constexpr auto kHigh = [](int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * kLanes + 2; };
  constexpr auto kEven = [](int i) { return i / 4 * 4 + i % 2 + i % 4 / 2 * kLanes; };
  constexpr auto kOdd = [](int i) { return i / 4 * 4 + i % 2 + i % 4 / 2 * kLanes + 2; };
  const Vec ab = shuffle(a, b, kLow) + shuffle(a, b, kHigh);
  const Vec cd = shuffle(c, d, kLow) + shuffle(c, d, kHigh);
  const Vec abcd = shuffle(ab, cd, kEven) + shuffle(ab, cd, kOdd);
  using Four = float __attribute__((vector_size(16)));
  struct Quarters {
    Four q[kLanes / 4];
  };
  const Quarters parts = std::bit_cast<Quarters>(abcd);
  Four sum = parts.q[0];
  for (int i = 1; i < kLanes / 4; ++i) sum += parts.q[i];
  std::memcpy(out, &sum, sizeof sum);
}
inline float sum_lanes(Vec a) {
  float out[4];
  sum_lanes4(a, a, a, a, out);
  return out[0];
}

// e^x within 2 units in the last place for x <= 0; 0 below -87, 1 at 0, NaN for NaN. x = n ln 2 + r.
inline Vec exp_negative(Vec x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the lowest bits
  const Vec clamped = select(x < -88.0f, splat(-88.0f), x);
  const Vec shifted = madd(clamped, splat(1.44269504f), splat(kMagic));
  const Vec n = shifted - kMagic;
  const Vec r = madd(n, splat(2.12194440e-4f), madd(n, splat(-0.693359375f), clamped));
  Vec p = splat(1.9875691500e-4f);
  p = madd(p, r, splat(1.3981999507e-3f));
  p = madd(p, r, splat(8.3334519073e-3f));
  p = madd(p, r, splat(4.1665795894e-2f));
  p = madd(p, r, splat(1.6666665459e-1f));
  p = madd(p, r, splat(5.0000001201e-1f));
  p = madd(p * r, r, r) + 1.0f;
  const Vec power = as_vec((as_words(shifted) << 23) + 0x3f800000u);
  return select(x < -87.0f, splat(0.0f), p * power);
}

// kLanes unsigned numbers, widened. Spelled out because the compiler's own conversion goes through memory.
inline Words widen_bytes(const void* from) {
#if defined(__AVX512F__)
  return std::bit_cast<Words>(_mm512_cvtepu8_epi32(load_as<__m128i>(from)));
#elif defined(__AVX2__)
  return std::bit_cast<Words>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from))));
#else
  return __builtin_convertvector(load_as<Bytes>(from), Words);
#endif
}
inline Words widen_halves(const void* from) {
#if defined(__AVX512F__)
  return std::bit_cast<Words>(_mm512_cvtepu16_epi32(load_as<__m256i>(from)));
#elif defined(__AVX2__)
  return std::bit_cast<Words>(_mm256_cvtepu16_epi32(load_as<__m128i>(from)));
#else
  return __builtin_convertvector(load_as<Halves>(from), Words);
#endif
}

inline Vec from_bf16(const void* codes) { return as_vec(widen_halves(codes) << 16); }
// Rounds to bf16, nearest even; NaN stays NaN.
inline Vec to_bf16(Vec x) {
  const Words bits = as_words(x);
  const Vec rounded = as_vec((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  return select(x != x, x, rounded);
}

// Sign, exponent and mantissa are put where a float has them and scaled by a power of two, which makes subnormals right
// as well; 0x7f and 0xff are NaN.
inline Vec from_e4m3(const void* codes) {
  const Words wide = widen_bytes(codes) << 24;
  const Words bits = std::bit_cast<Words>(std::bit_cast<Ints>(wide) >> 4) & 0x87f00000u;
  const Words nan = std::bit_cast<Words>((bits & 0x7ff00000u) == 0x07f00000u) & 0x7fc00000u;
  return as_vec(as_words(as_vec(bits) * 0x1p120f) | nan);
}

// kLanes codes, two a byte, low nibble first. The codes' upper bits don't matter: a look-up takes what it needs.
inline Vec from_packed_e2m1(const std::byte* codes) {
#if defined(__AVX512F__)
  const __m512i kShift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512i kWord = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512 kValue = _mm512_setr_ps(0.0f, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  const __m512i pair = _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_permutexvar_epi32(kWord, pair), kShift), kValue);
#else
  Words shift;
  for (int i = 0; i < kLanes; ++i) shift[i] = static_cast<uint32_t>(i) * 4;
  const uint32_t word = kLanes == 4 ? load_as<uint16_t>(codes) : load_as<uint32_t>(codes);
  const Words code = (Words{} + word) >> shift;
  const Vec magnitude = as_vec((code & 7u) << 22) * 0x1p126f;
  return as_vec(as_words(magnitude) | ((code & 8u) << 28));
#endif
}

}  // namespace
}  // namespace plumb::cpu
