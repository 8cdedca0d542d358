// Sixteen floats at once, in whatever registers the including file is compiled for. Included by files of one
// instruction set each, hence the unnamed namespace: no function of this header may be shared between them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace plumb::cpu {
namespace {

inline constexpr int kLanes = 16;
using Vec = float __attribute__((vector_size(64)));
using Ints = int32_t __attribute__((vector_size(64)));
using Words = uint32_t __attribute__((vector_size(64)));
using Half16 = uint16_t __attribute__((vector_size(32)));
using Byte16 = uint8_t __attribute__((vector_size(16)));

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
  struct Pair {
    __m256 low, high;
  };
  const Pair x = std::bit_cast<Pair>(a), y = std::bit_cast<Pair>(b), z = std::bit_cast<Pair>(c);
  return std::bit_cast<Vec>(Pair{_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high)});
#else
  return a * b + c;
#endif
}

// Sums of the lanes of four vectors, each in one fixed order.
inline void sum_lanes4(Vec a, Vec b, Vec c, Vec d, float* out) {
  constexpr Ints kLow = {0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29};
  constexpr Ints kHigh = {2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31};
  constexpr Ints kEven = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
  constexpr Ints kOdd = {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
  const Vec ab = __builtin_shuffle(a, b, kLow) + __builtin_shuffle(a, b, kHigh);
  const Vec cd = __builtin_shuffle(c, d, kLow) + __builtin_shuffle(c, d, kHigh);
  const Vec abcd = __builtin_shuffle(ab, cd, kEven) + __builtin_shuffle(ab, cd, kOdd);
  using Four = float __attribute__((vector_size(16)));
  struct Quarters {
    Four q[4];
  };
  const Quarters parts = std::bit_cast<Quarters>(abcd);
  const Four sum = (parts.q[0] + parts.q[2]) + (parts.q[1] + parts.q[3]);
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

inline Vec from_bf16(const void* codes) { return as_vec(__builtin_convertvector(load_as<Half16>(codes), Words) << 16); }
// Rounds to bf16, nearest even; NaN stays NaN.
inline Vec to_bf16(Vec x) {
  const Words bits = as_words(x);
  const Vec rounded = as_vec((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  return select(x != x, x, rounded);
}

// Codes 0 ... 255 in 32-bit lanes. Exponent and mantissa are put where a float has them and scaled by a power of two,
// which makes subnormals right as well.
inline Vec from_e4m3(Words codes) {
  const Words magnitude = codes & 0x7fu;
  const Vec value = as_vec(magnitude << 20) * 0x1p120f;
  const Words nan = std::bit_cast<Words>(magnitude == 0x7fu) & 0x7fc00000u;
  return as_vec(as_words(value) | nan | ((codes & 0x80u) << 24));
}
inline Vec from_e4m3(const void* codes) { return from_e4m3(__builtin_convertvector(load_as<Byte16>(codes), Words)); }
inline Vec from_e2m1(Words codes) {
  const Vec value = as_vec((codes & 7u) << 22) * 0x1p126f;
  return as_vec(as_words(value) | ((codes & 8u) << 28));
}
// Sixteen codes, two a byte, low nibble first.
inline Vec from_packed_e2m1(const void* codes) {
  constexpr Words kShift = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
  const uint32_t low = load_as<uint32_t>(codes);
  const uint32_t high = load_as<uint32_t>(static_cast<const char*>(codes) + 4);
  const Words words = {low, low, low, low, low, low, low, low, high, high, high, high, high, high, high, high};
  return from_e2m1((words >> kShift) & 15u);
}

}  // namespace
}  // namespace plumb::cpu
