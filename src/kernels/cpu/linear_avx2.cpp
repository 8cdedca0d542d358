// Products in f32 by AVX2 and FMA.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

namespace plumb::cpu {
namespace {
namespace isa {

constexpr int kWidth = 8;
constexpr int kRegisters = 16;
using V = float __attribute__((vector_size(32)));
inline V fma(V a, V b, V c) { return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline V e2m1(uint32_t __attribute__((vector_size(32))) code) {
  const __m256 magnitude = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);  // looked up by the three lowest bits
  const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32((__m256i)code, 3), 31);
  return (V)_mm256_xor_ps(_mm256_permutevar8x32_ps(magnitude, (__m256i)code), _mm256_castsi256_ps(sign));
}

}  // namespace isa
}  // namespace
}  // namespace plumb::cpu

#include "kernels/cpu/linear_f32.h"

namespace plumb::cpu {
const Tier kTierAvx2{.group_strips = isa::group_strips, .pack = isa::pack, .group = isa::group, .gate = gate_product};
}  // namespace plumb::cpu
#endif
