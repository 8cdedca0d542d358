// decode_row against the written formula of each format (formats.md sections 2.1, 3.1, 3.3), with hand-made bytes.
#include "tensor/dequant.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/encode.h"

namespace plumb {
namespace {

std::vector<uint8_t> random_bytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(random());
    if ((byte & 0x7f) == 0x7f) byte = 0x38;  // not E4M3's NaN
  }
  return bytes;
}

std::vector<float> random_scales(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> range(0.001f, 2.0f);
  std::vector<float> scales(count);
  for (float& scale : scales) scale = range(random);
  return scales;
}

TEST(DecodeRow, Nvfp4IsCodeTimesBlockScaleTimesGlobalScale) {
  const int64_t n = 3, k = 48;
  const auto data = random_bytes(static_cast<size_t>(n * k / 2), 1),
             scales = random_bytes(static_cast<size_t>(n * k / 16), 2);
  const float global = 0.00123f;
  const EncodedMatrix matrix{kNvfp4, n, k, data.data(), scales.data(), global};
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t r = 0; r < n; ++r) {
    decode_row(matrix, r, row.data());
    for (int64_t i = 0; i < k; ++i) {
      const uint8_t pair = data[static_cast<size_t>((r * k + i) / 2)];
      const uint8_t code = i % 2 == 0 ? pair & 15 : pair >> 4;
      const float exact = e2m1_to_f32(code) * e4m3_to_f32(scales[static_cast<size_t>(r * 3 + i / 16)]);
      EXPECT_EQ(row[static_cast<size_t>(i)], exact * global) << r << "," << i;
    }
  }
}

TEST(DecodeRow, Fp8BlocksMayBePartialInBothDirections) {
  const int64_t n = 200, k = 300;  // 2 x 3 blocks
  const auto data = random_bytes(static_cast<size_t>(n * k), 3);
  const auto scales = random_scales(6, 4);
  const std::vector<uint8_t> powers{120, 121, 122, 123, 124, 125};
  EXPECT_EQ(scale_rows(kFp8BlockF32, n), 2);
  EXPECT_EQ(scale_cols(kFp8BlockF32, k), 3);
  EXPECT_EQ(encoded_scale_bytes(kFp8BlockF32, n, k), 24);
  EXPECT_EQ(encoded_scale_bytes(kFp8BlockUe8m0, n, k), 6);
  std::vector<float> free_row(static_cast<size_t>(k)), power_row(free_row);
  for (const int64_t r : {0, 127, 128, 199}) {
    decode_row({kFp8BlockF32, n, k, data.data(), scales.data(), 1.0f}, r, free_row.data());
    decode_row({kFp8BlockUe8m0, n, k, data.data(), powers.data(), 1.0f}, r, power_row.data());
    for (int64_t i = 0; i < k; ++i) {
      const float element = e4m3_to_f32(data[static_cast<size_t>(r * k + i)]);
      const auto block = static_cast<size_t>(r / 128 * 3 + i / 128);
      EXPECT_EQ(free_row[static_cast<size_t>(i)], element * scales[block]);
      EXPECT_EQ(power_row[static_cast<size_t>(i)], element * std::ldexp(1.0f, powers[block] - 127));
    }
  }
}

TEST(DecodeRow, TensorAndChannelScales) {
  const int64_t n = 4, k = 10;
  const auto data = random_bytes(40, 5);
  const auto scales = random_scales(4, 6);
  std::vector<float> row(10);
  for (int64_t r = 0; r < n; ++r) {
    decode_row({kFp8Tensor, n, k, data.data(), scales.data(), 1.0f}, r, row.data());
    for (int64_t i = 0; i < k; ++i)
      EXPECT_EQ(row[static_cast<size_t>(i)], e4m3_to_f32(data[static_cast<size_t>(r * k + i)]) * scales[0]);
    decode_row({kFp8Channel, n, k, data.data(), scales.data(), 1.0f}, r, row.data());
    for (int64_t i = 0; i < k; ++i) {
      EXPECT_EQ(row[static_cast<size_t>(i)],
                e4m3_to_f32(data[static_cast<size_t>(r * k + i)]) * scales[static_cast<size_t>(r)]);
    }
  }
}

TEST(DecodeRow, PlainFormatsAtAnyAlignment) {
  const std::vector<float> values{1.5f, -2.25f, 0.0f, 1e-3f, 300.0f, -0.5f};
  std::vector<std::byte> bytes(1 + values.size() * 4);
  for (const Format format : {kF32, kBf16, kF16}) {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t code = format == kF32    ? f32_to_bits(values[i])
                            : format == kBf16 ? f32_to_bf16(values[i])
                                              : f32_to_f16(values[i]);
      const size_t width = format == kF32 ? 4 : 2;
      std::memcpy(bytes.data() + 1 + i * width, &code, width);  // little-endian: the low bytes
    }
    float row[3];
    decode_row({format, 2, 3, bytes.data() + 1, nullptr, 1.0f}, 1, row);
    for (size_t i = 0; i < 3; ++i) {
      const float value = values[3 + i];
      EXPECT_EQ(row[i], format == kF32 ? value : format == kBf16 ? round_bf16(value) : f16_to_f32(f32_to_f16(value)));
    }
  }
}

TEST(DecodeRow, NanCodesStayNan) {
  const uint8_t data[2] = {0x7f, 0x38};
  const float scale = 2.0f;
  float row[2];
  decode_row({kFp8Tensor, 1, 2, data, &scale, 1.0f}, 0, row);
  EXPECT_TRUE(std::isnan(row[0]));
  EXPECT_EQ(row[1], 2.0f);
}

// f32 and ue8m0 scales, blocks and channels: formats that differ in one field are different formats.
TEST(Format, ComparesWhole) {
  const Format all[] = {kF32,       kF16,        kBf16,  kFp8BlockF32,  kFp8BlockUe8m0,
                        kFp8Tensor, kFp8Channel, kNvfp4, kFp8Act128F32, kFp8Act128Ue8m0};
  for (const Format& a : all) {
    for (const Format& b : all) {
      EXPECT_EQ(a == b, &a == &b) << a.to_string() << " " << b.to_string();
      EXPECT_EQ(a.to_string() == b.to_string(), &a == &b);
    }
  }
}

}  // namespace
}  // namespace plumb
