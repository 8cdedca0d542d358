#include "checkpoint/encode_tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/thread_pool.h"
#include "checkpoint/encode_rows.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

TensorInfo info(std::string name, DType dtype, std::vector<int64_t> shape) {
  return TensorInfo{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

TensorProducer scalar(std::string name, std::vector<int64_t> shape, float value) {
  return {.info = info(std::move(name), DType::F32, std::move(shape)),
          .rows = 1,
          .row_step = 1,
          .fill = [value](int64_t, int64_t, std::byte* out) { std::memcpy(out, &value, 4); }};
}

TensorProducer bf16_weight(const EncodeArgs& args) {
  const RowSource source = args.source;
  return {.info = info(args.module + ".weight", DType::BF16, {source.n, source.k}),
          .rows = source.n,
          .row_step = 1,
          .fill = [source](int64_t first, int64_t count, std::byte* out) {
            std::vector<float> values(static_cast<size_t>(count * source.k));
            source.rows(first, count, values.data());
            for (size_t i = 0; i < values.size(); ++i) {
              const uint16_t code = f32_to_bf16(values[i]);
              std::memcpy(out + 2 * i, &code, 2);
            }
          }};
}

// Scales of one row of blocks: 128 rows of the matrix, or fewer at its end.
std::vector<float> block_scales(const RowSource& source, const float* values, int64_t rows, bool power_of_two) {
  std::vector<float> scales(static_cast<size_t>(ceil_div(source.k, 128)));
  for (size_t b = 0; b < scales.size(); ++b) {
    const int64_t begin = static_cast<int64_t>(b) * 128, width = std::min<int64_t>(128, source.k - begin);
    float amax = 0;
    for (int64_t r = 0; r < rows; ++r) {
      amax = std::max(amax, absolute_maximum({values + r * source.k + begin, static_cast<size_t>(width)}));
    }
    scales[b] = fp8_block_scale(amax, power_of_two);
  }
  return scales;
}

TensorProducer fp8_block_weight(const EncodeArgs& args, bool power_of_two) {
  const RowSource source = args.source;
  const auto fill = [source, power_of_two](int64_t first, int64_t count, std::byte* out) {
    std::vector<float> values(static_cast<size_t>(128 * source.k));
    for (int64_t row = first; row < first + count; row += 128) {
      const int64_t rows = std::min<int64_t>(128, source.n - row);
      source.rows(row, rows, values.data());
      const std::vector<float> scales = block_scales(source, values.data(), rows, power_of_two);
      auto* codes = reinterpret_cast<uint8_t*>(out) + (row - first) * source.k;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t begin = 0; begin < source.k; begin += 128) {
          const auto width = static_cast<size_t>(std::min<int64_t>(128, source.k - begin));
          const int64_t at = r * source.k + begin;
          encode_fp8({values.data() + at, width}, scales[static_cast<size_t>(begin / 128)], codes + at);
        }
      }
    }
  };
  return {.info = info(args.module + ".weight", DType::F8E4M3, {source.n, source.k}),
          .rows = source.n,
          .row_step = 128,
          .fill = fill};
}

TensorProducer fp8_block_scale_tensor(const EncodeArgs& args, const char* suffix, bool power_of_two) {
  const RowSource source = args.source;
  const int64_t columns = ceil_div(source.k, 128);
  const auto fill = [source, columns, power_of_two](int64_t first, int64_t count, std::byte* out) {
    std::vector<float> values(static_cast<size_t>(128 * source.k));
    for (int64_t b = 0; b < count; ++b) {
      const int64_t row = (first + b) * 128, rows = std::min<int64_t>(128, source.n - row);
      source.rows(row, rows, values.data());
      const std::vector<float> scales = block_scales(source, values.data(), rows, power_of_two);
      if (!power_of_two) {
        std::memcpy(out + b * columns * 4, scales.data(), static_cast<size_t>(columns) * 4);
        continue;
      }
      for (int64_t c = 0; c < columns; ++c) {
        out[b * columns + c] = static_cast<std::byte>(f32_to_e8m0_up(scales[static_cast<size_t>(c)]));
      }
    }
  };
  return {
      .info = info(args.module + suffix, power_of_two ? DType::F8E8M0 : DType::F32, {ceil_div(source.n, 128), columns}),
      .rows = ceil_div(source.n, 128),
      .row_step = 1,
      .fill = fill};
}

TensorProducer fp8_tensor_weight(const EncodeArgs& args, float scale) {
  const RowSource source = args.source;
  return {.info = info(args.module + ".weight", DType::F8E4M3, {source.n, source.k}),
          .rows = source.n,
          .row_step = 1,
          .fill = [source, scale](int64_t first, int64_t count, std::byte* out) {
            std::vector<float> values(static_cast<size_t>(count * source.k));
            source.rows(first, count, values.data());
            encode_fp8(values, scale, reinterpret_cast<uint8_t*>(out));
          }};
}

enum class Nvfp4Part { Codes, Scales };

TensorProducer nvfp4_part(const EncodeArgs& args, const char* suffix, float global_scale, Nvfp4Part part) {
  const RowSource source = args.source;
  const auto fill = [source, global_scale, part](int64_t first, int64_t count, std::byte* out) {
    std::vector<float> values(static_cast<size_t>(source.k));
    auto* bytes = reinterpret_cast<uint8_t*>(out);
    for (int64_t r = 0; r < count; ++r) {
      source.rows(first + r, 1, values.data());
      for (int64_t b = 0; b < source.k / 16; ++b) {
        const float* block = values.data() + 16 * b;
        const int64_t at = r * (source.k / 16) + b;
        if (part == Nvfp4Part::Codes) {
          encode_nvfp4_block(block, global_scale, bytes + 8 * at);
        } else {
          bytes[at] = nvfp4_block_scale(block, global_scale);
        }
      }
    }
  };
  const bool codes = part == Nvfp4Part::Codes;
  return {
      .info = info(args.module + suffix, codes ? DType::U8 : DType::F8E4M3, {source.n, source.k / (codes ? 2 : 16)}),
      .rows = source.n,
      .row_step = 1,
      .fill = fill};
}

void append_nvfp4(const EncodeArgs& args, bool compressed, std::vector<TensorProducer>& out) {
  // compressed-tensors stores 1 / g. The codes follow the g a reader gets back, so that both layouts decode alike.
  const float stored = 1.0f / nvfp4_global_scale(args.maximum);
  const float global = compressed ? 1.0f / stored : nvfp4_global_scale(args.maximum);
  out.push_back(nvfp4_part(args, compressed ? ".weight_packed" : ".weight", global, Nvfp4Part::Codes));
  out.push_back(nvfp4_part(args, ".weight_scale", global, Nvfp4Part::Scales));
  const std::vector<int64_t> shape = compressed ? std::vector<int64_t>{1} : std::vector<int64_t>{};
  out.push_back(scalar(args.module + (compressed ? ".weight_global_scale" : ".weight_scale_2"), shape,
                       compressed ? stored : global));
  if (!args.input_maximum) return;
  // In float64, then rounded once, as the calibration of the samples did.
  const double input = static_cast<double>(*args.input_maximum) / (6.0 * 448.0);
  out.push_back(scalar(args.module + (compressed ? ".input_global_scale" : ".input_scale"), shape,
                       static_cast<float>(compressed ? 1.0 / input : input)));
}

}  // namespace

void append_encoded(const EncodeArgs& args, std::vector<TensorProducer>& out) {
  switch (args.encoding) {
    case Encoding::Bf16:
      out.push_back(bf16_weight(args));
      return;
    case Encoding::Fp8Block:
    case Encoding::Fp8BlockUe8m0:
    case Encoding::Fp8BlockCompressed: {
      const bool power_of_two = args.encoding == Encoding::Fp8BlockUe8m0;
      out.push_back(fp8_block_weight(args, power_of_two));
      const char* suffix = args.encoding == Encoding::Fp8BlockCompressed ? ".weight_scale" : ".weight_scale_inv";
      out.push_back(fp8_block_scale_tensor(args, suffix, power_of_two));
      return;
    }
    case Encoding::Fp8Tensor: {
      const float scale = fp8_block_scale(args.maximum, false);
      out.push_back(fp8_tensor_weight(args, scale));
      out.push_back(scalar(args.module + ".weight_scale", {}, scale));
      if (args.input_maximum) out.push_back(scalar(args.module + ".input_scale", {}, *args.input_maximum / 448.0f));
      return;
    }
    case Encoding::Nvfp4:
      return append_nvfp4(args, false, out);
    case Encoding::Nvfp4Compressed:
      return append_nvfp4(args, true, out);
  }
}

float matrix_maximum(const RowSource& source, ThreadPool& pool) {
  std::vector<float> maxima(static_cast<size_t>(pool.size()), 0.0f);
  pool.parallel([&](int worker, int workers) {
    const Range range = split(source.n, worker, workers);
    std::vector<float> values(static_cast<size_t>(source.k));
    for (int64_t row = range.begin; row < range.end; ++row) {
      source.rows(row, 1, values.data());
      float& best = maxima[static_cast<size_t>(worker)];
      best = std::max(best, absolute_maximum(values));
    }
  });
  return *std::max_element(maxima.begin(), maxima.end());
}

}  // namespace plumb
