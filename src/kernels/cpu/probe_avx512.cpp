#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/probe.h"

namespace plumb::cpu {

// Four streams, fetched ahead, as the kernels read: a single one is slower, and would flatter them.
uint64_t read_avx512(const std::byte* data, size_t bytes) {
  __m512i sum[4];
  for (auto& s : sum) s = _mm512_setzero_si512();
  const size_t quarter = bytes / 4;
  for (size_t i = 0; i + 64 <= quarter; i += 64) {
    for (size_t j = 0; j < 4; ++j) {
      const std::byte* line = data + j * quarter + i;
      _mm_prefetch(reinterpret_cast<const char*>(line) + 2048, _MM_HINT_T1);
      sum[j] = _mm512_or_si512(sum[j], _mm512_loadu_si512(line));
    }
  }
  return static_cast<uint64_t>(
      _mm512_reduce_or_epi64(_mm512_or_si512(_mm512_or_si512(sum[0], sum[1]), _mm512_or_si512(sum[2], sum[3]))));
}

}  // namespace plumb::cpu
#endif
