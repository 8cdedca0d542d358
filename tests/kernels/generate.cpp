#include "generate.h"

#include <cmath>

#include "tensor/encode.h"

namespace plumb::testing {
namespace {

template <class T>
void store(Buffer& buffer, int64_t index, T value) {
  std::memcpy(buffer.data() + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// Values a checkpoint would have: a normal distribution, in the format's own range.
void fill_elements(Buffer& data, const Format& format, int64_t count, Values values, Rng& rng) {
  std::normal_distribution<float> normal(0.0f, format.quantised() ? 100.0f : 0.5f);
  for (int64_t i = 0; i < count; ++i) {
    float value = values == Values::Zeros ? 0.0f : normal(rng);
    if (values == Values::Outlier && i == count / 3) value *= 100.0f;
    switch (format.element) {
      case DType::F32:
        store(data, i, value);
        break;
      case DType::F16:
        store(data, i, f32_to_f16(value));
        break;
      case DType::BF16:
        store(data, i, f32_to_bf16(value));
        break;
      case DType::F8E4M3:  // one in sixteen is a code out of the whole range, subnormals and both zeros included
        store(data, i, rng() % 16 == 0 ? static_cast<uint8_t>((rng() % 0x7f) | (rng() & 0x80)) : f32_to_e4m3(value));
        break;
      default:
        PLUMB_CHECK(false, "no generator for this element type");
    }
  }
}

void fill_scales(Buffer& scale, const Format& format, int64_t count, Rng& rng) {
  std::uniform_real_distribution<float> exponent(-10.0f, -6.0f);
  for (int64_t i = 0; i < count; ++i) {
    if (format.scale == ScaleType::F32) store(scale, i, std::exp2(exponent(rng)));
    if (format.scale == ScaleType::UE8M0) store(scale, i, static_cast<uint8_t>(117 + rng() % 4));
    if (format.scale == ScaleType::UE4M3)
      store(scale, i, static_cast<uint8_t>(rng() % 16 == 0 ? rng() % 0x7f : 0x30 + rng() % 32));
  }
}

}  // namespace

std::string to_string(Values values) {
  constexpr const char* kNames[] = {"normal", "zeros", "denormals", "large", "outlier"};
  return kNames[static_cast<size_t>(values)];
}

void fill_values(float* out, int64_t count, Values values, Rng& rng) {
  std::normal_distribution<float> normal;
  const float factor = values == Values::Denormals ? 1e-40f : values == Values::Large ? 0x1p14f : 1.0f;
  for (int64_t i = 0; i < count; ++i) out[i] = values == Values::Zeros ? 0.0f : normal(rng) * factor;
  if (values == Values::Outlier && count > 0) out[static_cast<int64_t>(rng() % static_cast<uint64_t>(count))] = 3e5f;
}

TestWeight::TestWeight(const Format& format, int64_t n, int64_t k, Values values, Rng& rng) {
  // A checkpoint's tensors begin anywhere.
  data_ = Buffer(static_cast<size_t>(encoded_data_bytes(format, n, k)), 2);
  scale_ = Buffer(static_cast<size_t>(encoded_scale_bytes(format, n, k)), 1);
  if (format.element == DType::F4E2M1) {
    for (size_t i = 0; i < data_.bytes(); ++i)
      data_.data()[i] = values == Values::Zeros ? std::byte{0} : std::byte(rng() & 0xff);
  } else {
    fill_elements(data_, format, n * k, values, rng);
  }
  fill_scales(scale_, format, scale_rows(format, n) * scale_cols(format, k), rng);
  weight_.name = "test";
  weight_.source = {
      .format = format, .n = n, .k = k, .data = data_.data(), .scale = format.quantised() ? scale_.data() : nullptr};
  if (format.global_scale) weight_.source.global_scale = 0.0123f;
}

void TestWeight::add_bias(Rng& rng) {
  bias_ = Buffer(static_cast<size_t>(weight_.n()) * 4, 4);
  fill_values(bias_.as<float>(), weight_.n(), Values::Normal, rng);
  weight_.bias = bias_.as<float>();
}

bool TestWeight::prepare(const Registry& registry, Layout layout) {
  if (layout == Layout::RowMajor) return true;
  const Conversion* conversion = registry.conversion(layout, weight_.format());
  if (conversion == nullptr) return false;
  const size_t bytes = conversion->bytes(weight_.source);
  Buffer whole(bytes);
  conversion->fill(weight_.source, whole.data(), 0, 1);
  prepared_ = Buffer(bytes);
  prepared_.copy_from(whole);  // padding bytes nobody writes compare equal
  constexpr int kParts = 3;
  for (int part = 0; part < kParts; ++part) conversion->fill(weight_.source, prepared_.data(), part, kParts);
  if (!prepared_.same_as(whole)) return false;
  weight_.layout = layout;
  weight_.prepared = prepared_.data();
  return true;
}

}  // namespace plumb::testing
