#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/probe.h"

namespace plumb::cpu {

float multiply_registers_avx512bf16(int64_t rounds) {
  const __m512i ones = _mm512_set1_epi32(0x3f803f80);
  __m512 sum[12];
  for (auto& s : sum) s = _mm512_setzero_ps();
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], (__m512bh)ones, (__m512bh)ones);
  }
  float all = 0;
  for (const auto& s : sum) all += _mm512_reduce_add_ps(s);
  return all;
}

}  // namespace plumb::cpu
#endif
