// Number encodings, one element at a time: the meaning of every format (formats.md section 1). Exact decoding, and
// round-to-nearest-even encoding. Host and device; fast kernels have their own vector forms, tested against these.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define PLUMB_HD __host__ __device__
#else
#define PLUMB_HD
#endif

namespace plumb {

PLUMB_HD inline float bits_to_f32(uint32_t bits) { return std::bit_cast<float>(bits); }
PLUMB_HD inline uint32_t f32_to_bits(float value) { return std::bit_cast<uint32_t>(value); }

PLUMB_HD inline float bf16_to_f32(uint16_t code) { return bits_to_f32(static_cast<uint32_t>(code) << 16); }
// Nearest even; a NaN stays a NaN (quiet).
PLUMB_HD inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = f32_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
PLUMB_HD inline float round_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }

PLUMB_HD inline float f16_to_f32(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000u) << 16;
  const uint32_t exponent = (code >> 10) & 0x1fu;
  const uint32_t mantissa = code & 0x3ffu;
  if (exponent == 31) return bits_to_f32(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_to_f32(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return bits_to_f32(sign | f32_to_bits(magnitude));
}
PLUMB_HD inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = f32_to_bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {  // subnormal: multiples of 2^-24; adding 0.5 rounds to nearest even
    const float shifted = bits_to_f32(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(f32_to_bits(shifted) - 0x3f000000u);
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return sign | static_cast<uint16_t>((magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

// E4M3 "fn": 0x7f and 0xff are NaN, no infinities.
PLUMB_HD inline float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t exponent = (code >> 3) & 0xfu;
  const uint32_t mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return bits_to_f32(sign | 0x7fc00000u);
  if (exponent != 0) return bits_to_f32(sign | ((exponent + 120) << 23) | (mantissa << 20));
  return bits_to_f32(sign | f32_to_bits(static_cast<float>(mantissa) * 0x1p-9f));
}
// Nearest even, saturating at +-448; NaN stays NaN. What engines do.
PLUMB_HD inline uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = f32_to_bits(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;         // 448 and above
  if (magnitude < 0x3c800000u) {                             // below 2^-6: multiples of 2^-9, rounded by the adder
    const float shifted = bits_to_f32(magnitude) + 0x1p14f;  // one ulp of 2^14 is 2^-9
    return sign | static_cast<uint8_t>(f32_to_bits(shifted) - 0x46800000u);
  }
  const uint32_t odd = (magnitude >> 20) & 1u;
  const uint32_t rounded = (magnitude - (120u << 23) + 0x7ffffu + odd) >> 20;
  return sign | static_cast<uint8_t>(rounded > 0x7eu ? 0x7eu : rounded);
}

// E2M1: codes 0..7 are 0 .5 1 1.5 2 3 4 6, bit 3 is the sign.
PLUMB_HD inline float e2m1_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 8u) << 28;
  const uint32_t exponent = (code >> 1) & 3u;
  const uint32_t mantissa = code & 1u;
  const uint32_t magnitude =
      exponent != 0 ? ((exponent + 126) << 23) | (mantissa << 22) : (mantissa != 0 ? 0x3f000000u : 0u);
  return bits_to_f32(sign | magnitude);
}
// Nearest, ties to the even code, saturating at 6. Sign of zero as ModelOpt writes it: from value < 0 (formats.md 1.1).
PLUMB_HD inline uint8_t f32_to_e2m1(float value) {
  const float a = std::fabs(value);
  uint8_t code = 7;
  if (a <= 0.25f)
    code = 0;
  else if (a < 0.75f)
    code = 1;
  else if (a <= 1.25f)
    code = 2;
  else if (a < 1.75f)
    code = 3;
  else if (a <= 2.5f)
    code = 4;
  else if (a < 3.5f)
    code = 5;
  else if (a <= 5.0f)
    code = 6;
  return value < 0.0f ? static_cast<uint8_t>(code | 8u) : code;
}

// E8M0: 2^(code-127); 0xff is NaN. Code 0 is 2^-127, a subnormal float.
PLUMB_HD inline float e8m0_to_f32(uint8_t code) {
  if (code == 0xff) return bits_to_f32(0x7fc00000u);
  return code == 0 ? 0x1p-127f : bits_to_f32(static_cast<uint32_t>(code) << 23);
}
// Smallest power of two >= scale, for scale > 0 (formats.md 1.4).
PLUMB_HD inline uint8_t f32_to_e8m0_up(float scale) {
  const uint32_t bits = f32_to_bits(scale);
  const uint32_t code = ((bits >> 23) & 0xffu) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
  return static_cast<uint8_t>(code < 1 ? 1 : code > 254 ? 254 : code);
}

}  // namespace plumb
