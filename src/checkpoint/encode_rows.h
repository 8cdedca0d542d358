// Rounding rows of float32 weights into quantised formats, step by step as the sample checkpoints were made (formats.md
// sections 2.3 and 3.1): every step is one float32 operation, divisions are true divisions.
#pragma once

#include <cstdint>
#include <span>

namespace plumb {

float absolute_maximum(std::span<const float> values);

// Scale of one FP8 block from its absolute maximum: amax / 448, not below 1e-10; `power_of_two` rounds it up to one.
float fp8_block_scale(float amax, bool power_of_two);

// codes[i] = e4m3(values[i] / scale), saturating.
void encode_fp8(std::span<const float> values, float scale, uint8_t* codes);

// Global scale of an NVFP4 tensor: amax / (6 * 448). An all-zero tensor takes that of amax 1.
float nvfp4_global_scale(float amax);

// E4M3 code of one block's scale.
uint8_t nvfp4_block_scale(const float* values, float global_scale);

// One block of 16: returns its E4M3 scale code and writes 8 bytes of packed codes.
uint8_t encode_nvfp4_block(const float* values, float global_scale, uint8_t* packed);

}  // namespace plumb
