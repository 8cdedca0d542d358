// silu(gate) * up. Included by each instruction set's file, so that it is compiled, and vectorised, with its flags; no
// operation is contracted or reordered, so all of them give the same bits.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cpu/tier.h"

namespace plumb::cpu {
namespace {

// e^x within 2 units in the last place, |x| <= 87; NaN stays NaN. x = n ln 2 + r; polynomial in r, exponent n.
inline float exp_of(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the lowest bits
  const float shifted = x * 1.44269504f + kMagic;
  const float n = shifted - kMagic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u);
}

inline float silu(float x) {
  float minus = -x;
  minus = minus > 87.0f ? 87.0f : minus;
  minus = minus < -87.0f ? -87.0f : minus;
  return x / (1.0f + exp_of(minus));
}

inline float to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return x != x ? x : std::bit_cast<float>(rounded);
}

inline void gate_product(const GateJob& job) {
  const float* __restrict gate = job.gate;
  const float* __restrict up = job.up;
  float* __restrict h = job.h;
  if (job.round) {
    for (int64_t i = 0; i < job.n; ++i) h[i] = to_bf16(to_bf16(silu(to_bf16(gate[i]))) * to_bf16(up[i]));
  } else {
    for (int64_t i = 0; i < job.n; ++i) h[i] = silu(gate[i]) * up[i];
  }
}

}  // namespace
}  // namespace plumb::cpu
