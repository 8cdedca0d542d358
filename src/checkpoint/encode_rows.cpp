#include "checkpoint/encode_rows.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tensor/encode.h"

namespace plumb {
namespace {

// f32_to_e2m1 without branches, so that the compiler can do 16 at once; the same thresholds.
uint8_t e2m1_branchless(float value) {
  const float a = std::fabs(value);
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(code + (value < 0.0f ? 8 : 0));
}

}  // namespace

float absolute_maximum(std::span<const float> values) {
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

float fp8_block_scale(float amax, bool power_of_two) {
  const float scale = std::max(amax / 448.0f, 1e-10f);
  return power_of_two ? e8m0_to_f32(f32_to_e8m0_up(scale)) : scale;
}

void encode_fp8(std::span<const float> values, float scale, uint8_t* codes) {
  for (size_t i = 0; i < values.size(); ++i) codes[i] = f32_to_e4m3(values[i] / scale);
}

float nvfp4_global_scale(float amax) { return (amax > 0 ? amax : 1.0f) / (6.0f * 448.0f); }

uint8_t nvfp4_block_scale(const float* values, float global_scale) {
  float scale = absolute_maximum({values, 16}) / (6.0f * global_scale);
  if (scale == 0.0f) scale = 1.0f;
  return f32_to_e4m3(std::clamp(scale, 0x1p-9f, 448.0f));
}

uint8_t encode_nvfp4_block(const float* values, float global_scale, uint8_t* packed) {
  const uint8_t scale_code = nvfp4_block_scale(values, global_scale);
  const float divisor = e4m3_to_f32(scale_code) * global_scale;
  std::array<uint8_t, 16> codes;
  for (size_t i = 0; i < 16; ++i) codes[i] = e2m1_branchless(values[i] / divisor);
  for (size_t i = 0; i < 8; ++i) packed[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  return scale_code;
}

}  // namespace plumb
