// What tensor-core kernels are made of: mma.m16n8k16, ldmatrix, asynchronous copies, decoding of weights to bf16 pairs.
// Fragments: lane = 4 g + q. A: rows g, g + 8 by k 2q, 2q + 1 and 2q + 8, 2q + 9; B: column g by the same k; C: rows g,
// g + 8 by columns 2q, 2q + 1.
#pragma once

#include "kernels/cuda/device_types.cuh"

namespace plumb::cuda {

__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
// Four (two) 8 x 8 matrices of 16-bit elements; lanes 8 i ... 8 i + 7 name the rows of matrix i.
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ inline void load_matrices(uint32_t (&r)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
}
__device__ inline void load_transposed(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// `present` false: zeroes. 16 (4) bytes, both addresses multiples of that.
__device__ inline void copy_async_16(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0) : "memory");
}
__device__ inline void copy_async_4(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(present ? 4 : 0) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

__device__ inline void wait_for_copies_but_one() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

__device__ inline void store_shared(uint32_t at, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ inline void store_shared(uint32_t at, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
// a b + c, rounded once.
__device__ inline uint32_t add_product_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}
__device__ inline uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
// Two E4M3 codes, the lower bytes of `pair`, as f16: exact, NaN too.
__device__ inline uint32_t halves_of(uint32_t pair) {
  uint32_t out;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(static_cast<uint16_t>(pair)));
  return out;
}
__device__ inline void unpack_halves(uint32_t pair, float& low, float& high) {
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}"
      : "=f"(low), "=f"(high)
      : "r"(pair));
}
__device__ inline float low_bf16(uint32_t pair) { return bits_to_f32(pair << 16); }
__device__ inline float high_bf16(uint32_t pair) { return bits_to_f32(pair & 0xffff0000u); }

// Bytes 0 and 2 (odd: 1 and 3) of `word` as two bf16. Exponent and mantissa bits moved into a bf16 are the value times
// 2^-120, denormals included. Codes of NaN come out as 480: see has_nan.
template <bool odd>
__device__ uint32_t decode_e4m3(uint32_t word) {
  const uint32_t sign = odd ? word : word << 8;
  const uint32_t bits = odd ? word >> 4 : word << 4;
  return multiply_bf16x2((sign & 0x80008000u) | (bits & 0x07f007f0u), 0x7b807b80u);  // 2^120
}
// Nonzero when one of four E4M3 is NaN.
__device__ inline uint32_t has_nan(uint32_t word) { return ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; }

// The scale of a block, f32 or UE8M0.
__device__ inline float block_scale(const Mat& w, int64_t at) {
  return w.scale_type == ScaleType::F32 ? __ldg(reinterpret_cast<const float*>(w.scale) + at)
                                        : e8m0_to_f32(w.scale[at]);
}
// E4M3 codes 0 and 1 (upper: 2 and 3) of `word` times scale, rounded to bf16. Codes of NaN as decode_e4m3.
__device__ inline uint32_t scaled_pair(uint32_t word, float scale, bool upper) {
  const uint32_t even = decode_e4m3<false>(word), odd = decode_e4m3<true>(word);
  const float first = upper ? high_bf16(even) : low_bf16(even), second = upper ? high_bf16(odd) : low_bf16(odd);
  return pack_bf16(first * scale, second * scale);
}

// Eight neighbouring elements of a weight, as they lie and then as bf16 (rounded). Loading apart from decoding lets
// many loads be under way. `col` is a multiple of 8.
enum class WeightKind { Bf16, Fp8Block, Any };  // Fp8Block: 128 x 128
inline WeightKind kind_of(const Mat& w) {
  if (w.element == DType::BF16) return WeightKind::Bf16;
  return w.element == DType::F8E4M3 && w.block_n == 128 && w.block_k == 128 ? WeightKind::Fp8Block : WeightKind::Any;
}
template <WeightKind kind>
struct Eight {
  uint4 bits{};
  float scale = 1;

  __device__ void load(const Mat& w, int64_t row, int64_t col) {
    const int64_t i = row * w.k + col;
    if constexpr (kind == WeightKind::Bf16) {
      bits = __ldg(reinterpret_cast<const uint4*>(w.data + 2 * i));
    } else if constexpr (kind == WeightKind::Fp8Block) {
      const uint2 codes = __ldg(reinterpret_cast<const uint2*>(w.data + i));
      bits.x = codes.x, bits.y = codes.y;
      scale = block_scale(w, row / 128 * w.scale_ld + col / 128);
    } else {
      bits.x = pack_bf16(w.at(row, col), w.at(row, col + 1)),
      bits.y = pack_bf16(w.at(row, col + 2), w.at(row, col + 3));
      bits.z = pack_bf16(w.at(row, col + 4), w.at(row, col + 5));
      bits.w = pack_bf16(w.at(row, col + 6), w.at(row, col + 7));
    }
  }
  __device__ uint4 decoded() const {
    if constexpr (kind != WeightKind::Fp8Block) return bits;
    const float nan = (has_nan(bits.x) | has_nan(bits.y)) != 0 ? bits_to_f32(0x7fc00000u) : scale;
    return {scaled_pair(bits.x, nan, false), scaled_pair(bits.x, nan, true), scaled_pair(bits.y, nan, false),
            scaled_pair(bits.y, nan, true)};
  }
};

}  // namespace plumb::cuda
