// Every code of every encoding, and every rounding, against the definition in float64 (formats.md section 1).
#include "tensor/encode.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace plumb {
namespace {

// Value of an IEEE-like code, from its fields.
double field_value(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
  const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const uint32_t exponent = (code >> mantissa_bits) & ((1u << exponent_bits) - 1);
  const double sign = (code >> (mantissa_bits + exponent_bits)) & 1 ? -1.0 : 1.0;
  const double fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, static_cast<int>(exponent) - bias);
}

bool same(float a, double b) {
  return a == static_cast<float>(b) && std::signbit(a) == std::signbit(b) && static_cast<double>(a) == b;
}

// Nearest of ascending magnitudes, ties to the even code; beyond the last midpoint the last code.
uint32_t nearest(const std::vector<double>& magnitudes, double x) {
  const double a = std::fabs(x);
  const auto upper = std::lower_bound(magnitudes.begin(), magnitudes.end(), a);
  if (upper == magnitudes.end()) return static_cast<uint32_t>(magnitudes.size() - 1);
  const auto hi = static_cast<uint32_t>(upper - magnitudes.begin());
  if (hi == 0 || *upper == a) return hi;
  const double down = a - magnitudes[hi - 1], up = *upper - a;
  return down < up ? hi - 1 : up < down ? hi : hi - hi % 2;
}

// Floats that matter for rounding to `magnitudes`: each code, each midpoint, and the neighbours of both; then a sweep
// of all bit patterns with an odd stride.
void for_each_input(const std::vector<double>& magnitudes, const std::function<void(float)>& visit) {
  const auto around = [&](double value) {
    const float x = static_cast<float>(value);
    for (const float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, std::numeric_limits<float>::infinity())}) {
      visit(y);
      visit(-y);
    }
  };
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    around(magnitudes[i]);
    if (i + 1 < magnitudes.size()) around((magnitudes[i] + magnitudes[i + 1]) / 2);
  }
  around(magnitudes.back() * 1.25);
  for (uint64_t bits = 0; bits < (1ull << 32); bits += 2039) {
    const float x = bits_to_f32(static_cast<uint32_t>(bits));
    if (!std::isnan(x)) visit(x);
  }
}

TEST(E4m3, DecodesEveryCode) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_TRUE(same(value, field_value(code, 4, 3, 7))) << code;
    }
  }
  EXPECT_EQ(e4m3_to_f32(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_f32(0x3c), 1.5f);
  EXPECT_EQ(e4m3_to_f32(0x40), 2.0f);
  EXPECT_EQ(e4m3_to_f32(0x69), 72.0f);
  EXPECT_EQ(e4m3_to_f32(0xfe), -448.0f);
  EXPECT_EQ(e4m3_to_f32(0x01), 0.001953125f);
}

TEST(E4m3, RoundsToNearestEvenAndSaturates) {
  std::vector<double> magnitudes;
  for (uint32_t code = 0; code <= 0x7e; ++code) magnitudes.push_back(field_value(code, 4, 3, 7));
  int wrong = 0;
  for_each_input(magnitudes, [&](float x) {
    const uint32_t want = nearest(magnitudes, x) | (std::signbit(x) ? 0x80u : 0u);
    if (f32_to_e4m3(x) != want && ++wrong < 10) ADD_FAILURE() << x << ": " << int{f32_to_e4m3(x)} << " want " << want;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
}

TEST(E2m1, DecodesEveryCode) {
  const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_TRUE(same(e2m1_to_f32(code), code < 8 ? values[code] : -values[code - 8])) << int{code};
  }
}

TEST(E2m1, RoundsToNearestEvenAndTakesTheSignOfZeroFromTheComparison) {
  const std::vector<double> magnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  int wrong = 0;
  for_each_input(magnitudes, [&](float x) {
    const uint32_t want = nearest(magnitudes, x) | (x < 0 ? 8u : 0u);
    if (f32_to_e2m1(x) != want && ++wrong < 10) ADD_FAILURE() << x << ": " << int{f32_to_e2m1(x)} << " want " << want;
  });
  EXPECT_EQ(wrong, 0);
  const std::pair<float, uint8_t> ties[] = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4},
                                            {2.5f, 4},  {3.5f, 6},  {5.0f, 6},  {7.0f, 7}};
  for (const auto& [x, code] : ties) EXPECT_EQ(f32_to_e2m1(x), code) << x;
  EXPECT_EQ(f32_to_e2m1(-0.01f), 8);
  EXPECT_EQ(f32_to_e2m1(-0.0f), 0);
  EXPECT_EQ(f32_to_e2m1(1.0f) | f32_to_e2m1(-3.0f) << 4, 0xd2);  // packing example of formats.md 1.1
  EXPECT_EQ(f32_to_e2m1(0.5f) | f32_to_e2m1(6.0f) << 4, 0x71);
}

TEST(E8m0, DecodesEveryCodeAndRoundsUp) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_TRUE(same(e8m0_to_f32(static_cast<uint8_t>(code)), std::ldexp(1.0, code - 127))) << code;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(0xff)));
  EXPECT_EQ(f32_to_e8m0_up(1.0f), 127);
  EXPECT_EQ(f32_to_e8m0_up(0.75f), 127);
  EXPECT_EQ(f32_to_e8m0_up(1.5f), 128);
  EXPECT_EQ(f32_to_e8m0_up(3.0f), 129);
  EXPECT_EQ(f32_to_e8m0_up(1e-4f / 448.0f), 105);
  for (uint32_t bits = 0x00800000u; bits < 0x7f000000u; bits += 4093) {
    const float x = bits_to_f32(bits);
    const double up = e8m0_to_f32(f32_to_e8m0_up(x));
    ASSERT_TRUE(up >= x && up / 2 < x) << x;
  }
}

TEST(Bf16, DecodesEveryCodeAndRoundsToNearestEven) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_to_f32(static_cast<uint16_t>(code));
    ASSERT_EQ(f32_to_bits(value), code << 16);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value))));
    } else {
      ASSERT_EQ(f32_to_bf16(value), code);
    }
  }
  int wrong = 0;
  for (uint64_t bits = 0; bits < (1ull << 32); bits += 1021) {
    const float x = bits_to_f32(static_cast<uint32_t>(bits));
    if (!std::isfinite(x)) continue;
    const uint32_t low = static_cast<uint32_t>(bits) & 0xffffu, head = static_cast<uint32_t>(bits >> 16);
    const uint32_t want = low > 0x8000u || (low == 0x8000u && head % 2 == 1) ? head + 1 : head;
    if (f32_to_bf16(x) != want) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(std::isnan(round_bf16(bits_to_f32(0x7f800001u))));  // a payload in the lost bits stays a NaN
}

TEST(F16, DecodesEveryCodeAndRoundsToNearestEven) {
  std::vector<double> magnitudes;
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = f16_to_f32(static_cast<uint16_t>(code));
    const bool special = ((code >> 10) & 0x1f) == 0x1f;
    if (special) {
      ASSERT_EQ(std::isnan(value), (code & 0x3ff) != 0);
      ASSERT_EQ(std::isinf(value), (code & 0x3ff) == 0);
      continue;
    }
    ASSERT_TRUE(same(value, field_value(code, 5, 10, 15))) << code;
    if (code < 0x8000) magnitudes.push_back(value);
  }
  int wrong = 0;
  for_each_input(magnitudes, [&](float x) {
    const uint32_t magnitude =
        std::fabs(x) >= 65520.0f ? 0x7c00u : nearest(magnitudes, x);  // half a step above the largest
    const uint32_t want = magnitude | (std::signbit(x) ? 0x8000u : 0u);
    if (f32_to_f16(x) != want && ++wrong < 10) ADD_FAILURE() << x << ": " << f32_to_f16(x) << " want " << want;
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace plumb
