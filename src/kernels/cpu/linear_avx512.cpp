// Products in f32 by AVX-512 F, BW, VL and DQ.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

namespace plumb::cpu {
namespace {
namespace isa {

constexpr int kWidth = 16;
constexpr int kRegisters = 32;
using V = float __attribute__((vector_size(64)));
inline V fma(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline V e2m1(uint32_t __attribute__((vector_size(64))) code) {
  const __m512 values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  return (V)_mm512_permutexvar_ps((__m512i)code, values);
}

}  // namespace isa
}  // namespace
}  // namespace plumb::cpu

#include "kernels/cpu/linear_f32.h"

namespace plumb::cpu {
const Tier kTierAvx512{.group_strips = isa::group_strips, .pack = isa::pack, .group = isa::group, .gate = gate_product};
}  // namespace plumb::cpu
#endif
