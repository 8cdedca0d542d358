// The transposition of strip16.h by 512-bit vectors: 16 words of 16 rows at a time, written past the caches.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/strip16.h"

namespace plumb::cpu {
namespace {

// r[row], a word a lane -> r[word], a row a lane.
void transpose16(__m512i (&r)[16]) {
  __m512i t[16];
  __m512i u[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // u[4 g + c], 128-bit lane L: word 4 L + c of rows 4 g ... 4 g + 3
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {
    const __m512i even0 = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x88),
                  even1 = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x88);
    const __m512i odd0 = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xdd),
                  odd1 = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xdd);
    r[c] = _mm512_shuffle_i32x4(even0, even1, 0x88);
    r[4 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
    r[12 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
  }
}

template <WordShuffle shuffle>
__m512i sort_words(__m512i v) {
  if constexpr (shuffle == WordShuffle::E4m3) {
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    return _mm512_shuffle_epi8(v, order);
  }
  if constexpr (shuffle == WordShuffle::E2m1) {
    // Inner nibbles of each half change places, then the inner bytes of the word.
    const __m512i t = _mm512_ternarylogic_epi32(v, _mm512_srli_epi32(v, 4), _mm512_set1_epi32(0x00f000f0), 0x28);
    v = _mm512_ternarylogic_epi32(v, t, _mm512_slli_epi32(t, 4), 0x96);
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    return _mm512_shuffle_epi8(v, order);
  }
  return v;
}

template <WordShuffle shuffle>
void transpose_words(const TransposeJob& job) {
  for (int64_t v = 0; v < job.words; v += 16) {
    const int64_t rest = job.words - v;
    const __mmask16 mask = static_cast<__mmask16>(rest >= 16 ? 0xffff : (1 << rest) - 1);
    __m512i r[16];
    for (int n = 0; n < 16; ++n) {
      r[n] = _mm512_maskz_loadu_epi32(mask, job.rows[n] + v * 4);
      // Sixteen streams are more than the hardware follows; the rows of the next strip lie side by side.
      if (job.next != nullptr) _mm_prefetch(reinterpret_cast<const char*>(job.next) + (v + n) * 64, _MM_HINT_T1);
    }
    transpose16(r);
    std::byte* out = job.out + v * 64;
    if (job.group_vectors > 0) out += v / job.group_vectors * job.group_gap;
    int64_t in_group = job.group_vectors > 0 ? v % job.group_vectors : 0;
    for (int w = 0; w < 16 && w < rest; ++w) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(out), sort_words<shuffle>(r[w]));
      out += 64;
      if (++in_group == job.group_vectors) in_group = 0, out += job.group_gap;
    }
  }
  _mm_sfence();
}

}  // namespace

void transpose_words_avx512(const TransposeJob& job) {
  switch (job.shuffle) {
    case WordShuffle::None:
      return transpose_words<WordShuffle::None>(job);
    case WordShuffle::E4m3:
      return transpose_words<WordShuffle::E4m3>(job);
    case WordShuffle::E2m1:
      return transpose_words<WordShuffle::E2m1>(job);
  }
}

}  // namespace plumb::cpu
#endif
