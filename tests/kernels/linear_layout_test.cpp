// Layout::CpuStrip16: every element of a prepared weight, found by the formula in kernels/cpu/strip16.h, is what
// decode_row gives, for every format and for sizes that fill neither strips nor blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/strip16.h"
#include "kernels/cpu/strip16_kernels.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

constexpr Format kFormats[] = {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4};

struct Source {
  std::vector<uint8_t> data{}, scale{};
  EncodedMatrix matrix{};
};

// Every byte value occurs; scales are finite and not zero. One byte in front, so that nothing is aligned.
Source random_source(const Format& format, int64_t n, int64_t k) {
  std::mt19937 random(static_cast<unsigned>(n * 1000 + k));
  Source s;
  s.data.resize(static_cast<size_t>(encoded_data_bytes(format, n, k)) + 1);
  for (uint8_t& byte : s.data) byte = static_cast<uint8_t>(random());
  const int64_t scales = scale_rows(format, n) * scale_cols(format, k);
  s.scale.resize(static_cast<size_t>(encoded_scale_bytes(format, n, k)) + 1);
  for (int64_t i = 0; i < scales; ++i) {
    if (format.scale == ScaleType::F32) {
      const float value =
          std::ldexp(1.0f + static_cast<float>(random() % 1000) / 1000.0f, static_cast<int>(random() % 20) - 10);
      std::memcpy(s.scale.data() + 1 + i * 4, &value, 4);
    } else {
      s.scale[static_cast<size_t>(i + 1)] = static_cast<uint8_t>(random() % 0x7f);
    }
  }
  s.matrix = {.format = format,
              .n = n,
              .k = k,
              .data = s.data.data() + 1,
              .scale = s.scale.data() + 1,
              .global_scale = format.global_scale ? 0.37f : 1.0f};
  return s;
}

struct Prepared {
  std::vector<std::byte> storage{};
  std::byte* data = nullptr;
};
// With guard bytes behind, which a conversion must not touch.
constexpr size_t kGuard = 256;
Prepared prepare(const EncodedMatrix& source, int parts) {
  const Conversion conversion = cpu_conversions().front();
  Prepared p;
  const size_t bytes = conversion.bytes(source);
  p.storage.assign(bytes + 64 + kGuard, std::byte{0xa5});
  p.data = p.storage.data() + (64 - reinterpret_cast<uintptr_t>(p.storage.data()) % 64) % 64;
  for (int part = 0; part < parts; ++part) conversion.fill(source, p.data, part, parts);
  for (size_t i = 0; i < kGuard - 64; ++i) EXPECT_EQ(p.data[bytes + i], std::byte{0xa5}) << "written past the end";
  return p;
}

template <class T>
T at(const std::byte* base, int64_t offset) {
  T value;
  std::memcpy(&value, base + offset, sizeof value);
  return value;
}

// Offset inside 64 bytes of four consecutive k of 16 outputs, of one byte each.
int64_t byte_place(int64_t n, int64_t k) { return 16 * (n / 4) + 8 * (k / 2) + 2 * (n % 4) + k % 2; }

float element(const cpu::StripMatrix& m, int64_t row, int64_t k) {
  const std::byte* strip = m.strip(row / 16);
  const int64_t n = row % 16;
  switch (m.coding) {
    case cpu::Coding::F32:
      return at<float>(strip, (k * 16 + n) * 4);
    case cpu::Coding::F16:
      return f16_to_f32(at<uint16_t>(strip, k / 2 * 64 + n * 4 + k % 2 * 2));
    case cpu::Coding::Bf16:
      return bf16_to_f32(at<uint16_t>(strip, k / 2 * 64 + n * 4 + k % 2 * 2));
    case cpu::Coding::E4m3:
      return e4m3_to_f32(at<uint8_t>(strip, k / 4 * 64 + byte_place(n, k % 4)));
    case cpu::Coding::E2m1: {
      const std::byte* group = strip + k / 64 * 576;
      const uint32_t word = at<uint32_t>(group, k % 64 / 8 * 64 + n * 4);
      const float scale = e4m3_to_f32(at<uint8_t>(group, 512 + byte_place(n, k % 64 / 16)));
      return e2m1_to_f32((word >> (16 * (k % 2) + 4 * (k % 8 / 2))) & 15u) * scale;
    }
  }
  return 0;
}

float value(const cpu::StripMatrix& m, int64_t row, int64_t k) {
  float x = element(m, row, k);
  if (m.block_scale != nullptr) x *= m.block_scale[row / 16 * m.k_blocks() + k / 128];
  if (m.row_scale != nullptr) x *= m.row_scale[row];
  return m.coding == cpu::Coding::E2m1 ? x * m.global_scale : x;
}

bool same(float a, float b) { return std::isnan(a) ? std::isnan(b) : a == b; }

class Strip16Test : public testing::TestWithParam<Format> {};

TEST_P(Strip16Test, HoldsTheSourcesValues) {
  const Format& format = GetParam();
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{16, 128},
                             {1, 1},
                             {17, 130},
                             {33, 7},
                             {48, 257},
                             {300, 64},
                             {130, 400},
                             {16, 144},
                             {5, 1040},
                             {144, 16},
                             {15, 48}}) {
    if (format == kNvfp4 && k % 16 != 0) continue;
    for (const int parts : {1, 3}) {
      const Source source = random_source(format, n, k);
      const Prepared prepared = prepare(source.matrix, parts);
      const Weight weight{.source = source.matrix, .layout = Layout::CpuStrip16, .prepared = prepared.data};
      const cpu::StripMatrix m = cpu::strip_matrix(weight);
      std::vector<float> row(static_cast<size_t>(k));
      for (int64_t i = 0; i < n; ++i) {
        decode_row(source.matrix, i, row.data());
        for (int64_t j = 0; j < k; ++j)
          ASSERT_TRUE(same(value(m, i, j), row[static_cast<size_t>(j)]))
              << format.to_string() << " " << n << "x" << k << " at " << i << "," << j << ": " << value(m, i, j)
              << " and not " << row[static_cast<size_t>(j)];
      }
    }
  }
}

// A strip's padding is multiplied too, so it must be zero.
TEST_P(Strip16Test, PadsWithZeros) {
  const Format& format = GetParam();
  const int64_t n = 19, k = format == kNvfp4 ? 80 : 129;
  const Source source = random_source(format, n, k);
  const Prepared prepared = prepare(source.matrix, 1);
  const Weight weight{.source = source.matrix, .layout = Layout::CpuStrip16, .prepared = prepared.data};
  const cpu::StripMatrix m = cpu::strip_matrix(weight);
  const int64_t unit = format.element == DType::F32      ? 1
                       : format.element == DType::F8E4M3 ? 4
                       : format == kNvfp4                ? 64
                                                         : 2;
  const int64_t k_padded = (k + unit - 1) / unit * unit;
  for (int64_t i = 0; i < 32; ++i)
    for (int64_t j = 0; j < k_padded; ++j)
      if (i >= n || j >= k) {
        ASSERT_EQ(element(m, i, j), 0.0f) << i << "," << j;
      }
}

TEST(Strip16TransposeTest, VectorsAndWordsAgree) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512bw")) GTEST_SKIP() << "this CPU has no AVX-512";
#endif
  std::mt19937 random(7);
  std::vector<uint32_t> words(16 * 100);
  for (uint32_t& w : words) w = random();
  for (const cpu::WordShuffle shuffle : {cpu::WordShuffle::None, cpu::WordShuffle::E4m3, cpu::WordShuffle::E2m1}) {
    for (const int64_t count : {1, 15, 16, 17, 33, 100}) {
      alignas(64) static std::byte out[2][100 * 128];
      std::memset(out, 0, sizeof out);
      for (int i = 0; i < 2; ++i) {
        cpu::TransposeJob job{.words = count, .out = out[i], .group_vectors = 8, .group_gap = 64, .shuffle = shuffle};
        for (int n = 0; n < 16; ++n) job.rows[n] = reinterpret_cast<const std::byte*>(words.data() + n * 100);
        (i == 0 ? cpu::transpose_words_generic : cpu::transpose_words_avx512)(job);
      }
      EXPECT_EQ(std::memcmp(out[0], out[1], sizeof out[0]), 0) << count << " words";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Strip16Test, testing::ValuesIn(kFormats), [](const auto& test) {
  std::string name;
  for (const char c : test.param.to_string()) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

}  // namespace
}  // namespace plumb
