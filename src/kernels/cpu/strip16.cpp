#include "kernels/cpu/strip16.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cpu/strip16_kernels.h"

namespace plumb::cpu {
namespace {

Coding coding_of(DType element) {
  switch (element) {
    case DType::F16:
      return Coding::F16;
    case DType::BF16:
      return Coding::Bf16;
    case DType::F8E4M3:
      return Coding::E4m3;
    case DType::F4E2M1:
      return Coding::E2m1;
    default:
      return Coding::F32;
  }
}

// Bytes of one strip's elements.
int64_t element_bytes(Coding coding, int64_t k) {
  switch (coding) {
    case Coding::F32:
      return k * 64;
    case Coding::F16:
    case Coding::Bf16:
      return ceil_div(k, 2) * 64;
    case Coding::E4m3:
      return ceil_div(k, 4) * 64;
    case Coding::E2m1:
      return ceil_div(k, kFp4GroupK) * kFp4GroupBytes;
  }
  return 0;
}

// Whether eight strips so many cache lines apart, read side by side, keep out of each other's way in a first-level
// cache of 64 sets: nowhere are two of them within four sets.
bool spreads(int64_t lines) {
  for (int64_t i = 1; i < 8; ++i) {
    const int64_t apart = i * lines % 64;
    if (std::min(apart, 64 - apart) < 4) return false;
  }
  return true;
}

// From one strip to the next. Large strips are padded: with a power of two between them all would share a set.
int64_t strip_bytes(Coding coding, int64_t k) {
  int64_t lines = element_bytes(coding, k) / 64;
  while (lines >= 64 && !spreads(lines)) ++lines;
  return lines * 64;
}

// Floats of scales a strip has after the data; only FP8 does.
int64_t strip_scales(const Format& format, int64_t k) {
  if (format.element != DType::F8E4M3) return 0;
  return format.block_k == kBlockK ? ceil_div(k, kBlockK) : kStrip;
}

using Transpose = void (*)(const TransposeJob&);
Transpose best_transpose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return transpose_words_avx512;
#endif
  return transpose_words_generic;
}

// One strip of the source: where its 16 rows begin.
struct SourceRows {
  const std::byte* first = nullptr;
  int64_t row_bytes = 0;
  int64_t rows = 0;                  // of the source that are in this strip, at most 16
  const std::byte* zeros = nullptr;  // [row_bytes], stands for rows beyond the last
  bool more = false;                 // another whole strip follows
};

// Transposes whole 32-bit words, then the last one when the rows end inside it, then clears the rest of its group.
void transpose_rows(const SourceRows& source, TransposeJob job, Transpose transpose) {
  for (int n = 0; n < kStrip; ++n) job.rows[n] = n < source.rows ? source.first + n * source.row_bytes : source.zeros;
  const int64_t words = source.row_bytes / 4;
  const int64_t vectors = ceil_div(source.row_bytes, 4);
  const auto place = [&](int64_t v) {
    return job.out + v * 64 + (job.group_vectors > 0 ? v / job.group_vectors * job.group_gap : 0);
  };
  job.words = words;
  if (source.more) job.next = source.first + kStrip * source.row_bytes;
  transpose(job);
  if (vectors > words) {
    std::byte last[kStrip][4] = {};
    TransposeJob rest = job;
    rest.words = 1;
    rest.out = place(words);
    for (int n = 0; n < kStrip; ++n) {
      std::memcpy(last[n], job.rows[n] + words * 4, static_cast<size_t>(source.row_bytes - words * 4));
      rest.rows[n] = last[n];
    }
    transpose_words_generic(rest);
  }
  if (job.group_vectors <= 1) return;
  for (int64_t v = vectors; v % job.group_vectors != 0; ++v) std::memset(place(v), 0, 64);
}

void fill_scales(const EncodedMatrix& source, int64_t strip, float* out) {
  const Format& format = source.format;
  if (format.block_k == kBlockK) {
    const int64_t cols = ceil_div(source.k, kBlockK);
    for (int64_t c = 0; c < cols; ++c) out[c] = decode_scale(source, strip * kStrip / format.block_n, c);
    return;
  }
  for (int64_t i = 0; i < kStrip; ++i) {
    const int64_t row = std::min(strip * kStrip + i, source.n - 1);
    out[i] = decode_scale(source, format.block_n == 0 ? 0 : row, 0);
  }
}

void fill_strips(const EncodedMatrix& source, std::byte* out, int part, int parts) {
  const Transpose transpose = best_transpose();
  const Coding coding = coding_of(source.format.element);
  const int64_t row_bytes = encoded_data_bytes(source.format, 1, source.k);
  const int64_t scale_bytes = coding == Coding::E2m1 ? source.k / 16 : 0;
  const int64_t bytes = strip_bytes(coding, source.k), used = element_bytes(coding, source.k);
  const int64_t strips = ceil_div(source.n, kStrip);
  const int64_t scales = strip_scales(source.format, source.k);
  std::vector<std::byte> zeros;
  if (source.n % kStrip != 0) zeros.resize(static_cast<size_t>(std::max(row_bytes, scale_bytes)));
  TransposeJob job{};
  if (coding == Coding::E4m3) job.shuffle = WordShuffle::E4m3;
  if (coding == Coding::E2m1) job.shuffle = WordShuffle::E2m1, job.group_vectors = 8, job.group_gap = 64;
  const Range range = split(strips, part, parts);
  for (int64_t s = range.begin; s < range.end; ++s) {
    SourceRows rows{.first = static_cast<const std::byte*>(source.data) + s * kStrip * row_bytes,
                    .row_bytes = row_bytes,
                    .rows = std::min<int64_t>(kStrip, source.n - s * kStrip),
                    .zeros = zeros.data(),
                    .more = s + 1 < range.end && (s + 2) * kStrip <= source.n};
    job.out = out + s * bytes;
    transpose_rows(rows, job, transpose);
    if (scale_bytes > 0) {
      rows.first = static_cast<const std::byte*>(source.scale) + s * kStrip * scale_bytes;
      rows.row_bytes = scale_bytes;
      transpose_rows(rows, {.out = job.out + 512, .group_vectors = 1, .group_gap = 512, .shuffle = WordShuffle::E4m3},
                     transpose);
    }
    std::memset(job.out + used, 0, static_cast<size_t>(bytes - used));
    if (scales > 0) fill_scales(source, s, reinterpret_cast<float*>(out + strips * bytes) + s * scales);
  }
}

// Portable vectors: the compiler makes SSE2 or NEON of them.
using V4 = uint32_t __attribute__((vector_size(16)));
using V8h = uint16_t __attribute__((vector_size(16)));

V4 load4(const std::byte* p) {
  V4 v;
  std::memcpy(&v, p, 16);
  return v;
}

V4 shuffle_words(V4 v, WordShuffle shuffle) {
  if (shuffle == WordShuffle::E4m3) return V4(__builtin_shufflevector(V8h(v), V8h(v), 0, 2, 4, 6, 1, 3, 5, 7));
  if (shuffle == WordShuffle::E2m1) {
    V4 t = (v ^ (v >> 4)) & 0x00f000f0u;
    v ^= t ^ (t << 4);
    t = (v ^ (v >> 8)) & 0x0000ff00u;
    v ^= t ^ (t << 8);
  }
  return v;
}

}  // namespace

bool strip16_supports(const Format& format) {
  for (const Format& f : {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4})
    if (f == format) return true;
  return false;
}

size_t strip16_bytes(const EncodedMatrix& source) {
  const int64_t strips = ceil_div(source.n, kStrip);
  const int64_t bytes = strip_bytes(coding_of(source.format.element), source.k);
  return static_cast<size_t>(strips * (bytes + strip_scales(source.format, source.k) * 4));
}

StripMatrix strip_matrix(const Weight& weight) {
  PLUMB_CHECK(weight.layout == Layout::CpuStrip16 && weight.prepared != nullptr, "weight is not in strips of 16");
  const EncodedMatrix& source = weight.source;
  StripMatrix m{.coding = coding_of(source.format.element),
                .n = source.n,
                .k = source.k,
                .strips = ceil_div(source.n, kStrip),
                .data = weight.prepared,
                .global_scale = source.format.global_scale ? source.global_scale : 1.0f,
                .bias = weight.bias};
  m.strip_bytes = strip_bytes(m.coding, m.k);
  const float* scales = reinterpret_cast<const float*>(m.data + m.strips * m.strip_bytes);
  if (m.coding == Coding::E4m3) (source.format.block_k == kBlockK ? m.block_scale : m.row_scale) = scales;
  return m;
}

void transpose_words_generic(const TransposeJob& job) {
  int64_t v = 0;
  const auto place = [&](int64_t vector) {
    return job.out + vector * 64 + (job.group_vectors > 0 ? vector / job.group_vectors * job.group_gap : 0);
  };
  for (; v + 4 <= job.words; v += 4) {
    for (int lane = 0; lane < 4; ++lane) {
      const V4 a = load4(job.rows[4 * lane] + ptrdiff_t{v} * 4), b = load4(job.rows[4 * lane + 1] + ptrdiff_t{v} * 4);
      const V4 c = load4(job.rows[4 * lane + 2] + ptrdiff_t{v} * 4),
               d = load4(job.rows[4 * lane + 3] + ptrdiff_t{v} * 4);
      const V4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const V4 cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      const V4 words[4] = {__builtin_shufflevector(ab0, cd0, 0, 1, 4, 5), __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7),
                           __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5),
                           __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7)};
      for (int w = 0; w < 4; ++w) {
        const V4 sorted = shuffle_words(words[w], job.shuffle);
        std::memcpy(place(v + w) + ptrdiff_t{lane} * 16, &sorted, 16);
      }
    }
  }
  for (; v < job.words; ++v) {
    for (int lane = 0; lane < 4; ++lane) {
      uint32_t words[4];
      for (int i = 0; i < 4; ++i) std::memcpy(&words[i], job.rows[4 * lane + i] + ptrdiff_t{v} * 4, 4);
      const V4 sorted = shuffle_words(V4{words[0], words[1], words[2], words[3]}, job.shuffle);
      std::memcpy(place(v) + ptrdiff_t{lane} * 16, &sorted, 16);
    }
  }
}

#if !defined(__x86_64__)
void transpose_words_avx512(const TransposeJob& job) { transpose_words_generic(job); }
#endif

}  // namespace plumb::cpu

namespace plumb {

std::vector<Conversion> cpu_conversions() {
  return {{.to = Layout::CpuStrip16,
           .formats = {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4},
           .bytes = cpu::strip16_bytes,
           .fill = cpu::fill_strips}};
}

}  // namespace plumb
