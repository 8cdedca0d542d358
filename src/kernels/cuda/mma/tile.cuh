// The product of 16 rows of a quantised weight with a few columns of activations on the tensor cores
// (mma.m16n8k16 bf16, f32 accumulators), for decode steps: every weight byte is read once, by 16-byte loads.
//
// Activations are split exactly: an f32 is the sum of three bf16 (hi + mid + lo), each its own column; a bf16 is one.
// Rows are first scaled by a power of two so that no part is denormal. Weights are decoded exactly to bf16: E4M3 has 4
// significant bits, E2M1 times its UE4M3 block scale 2 + 4. What remains are f32 additions, in an order that depends
// on k alone: a column's bits don't depend on the columns beside it.
#pragma once

#include "kernels/cuda/mma/fragments.cuh"

namespace plumb::cuda {

enum class Coding { Bf16, Fp8Block, Fp8Row, Nvfp4 };  // Fp8Row: one scale a row, or one in all

inline constexpr int kTileRows = 16;
inline constexpr int kWarps = 8;

template <Coding coding>
struct Unit;  // what a warp takes at once: kElements of k in kLoads 16-byte loads a lane and row; kUnroll units in
              // flight
template <>
struct Unit<Coding::Bf16> {
  static constexpr int kElements = 32, kLoads = 1, kUnroll = 4, kPerLoad = 8, kBlocks = 3;
};
template <>
struct Unit<Coding::Fp8Block> {
  static constexpr int kElements = 128, kLoads = 2, kUnroll = 1, kPerLoad = 16, kBlocks = 4;
};
template <>
struct Unit<Coding::Fp8Row> : Unit<Coding::Fp8Block> {};
template <>
struct Unit<Coding::Nvfp4> {
  static constexpr int kElements = 128, kLoads = 1, kUnroll = 2, kPerLoad = 32, kBlocks = 4;
};
// E2M1 decodes to 2^-7 of its value (see decode_e2m1); the last scaling makes up for it.
inline constexpr int kNvfp4Exponent = 7;

// Nibbles j and j + 4 of `word` times the block's scale and 2^-7. Exponent and mantissa bits moved into a bf16 are the
// value times 2^-126 (denormals included); `scale` holds the block scale times 2^119, twice.
template <int j>
__device__ uint32_t decode_e2m1(uint32_t word, uint32_t scale) {
  const uint32_t sign = word << (12 - 4 * j);
  const uint32_t bits = 6 - 4 * j >= 0 ? word << (j <= 1 ? 6 - 4 * j : 0) : word >> (j > 1 ? 4 * j - 6 : 0);
  return multiply_bf16x2((sign & 0x80008000u) | (bits & 0x01c001c0u), scale);
}
// The same to f16 and 2^-7 of the value: `scale` holds the block scale times 2^7, twice.
template <int j>
__device__ uint32_t halves_of_e2m1(uint32_t word, uint32_t scale) {
  const uint32_t sign = word << (12 - 4 * j);
  const uint32_t bits = j < 3 ? word << (j < 3 ? 9 - 4 * j : 0) : word >> 3;
  return multiply_f16x2((sign & 0x80008000u) | (bits & 0x0e000e00u), scale);
}
__device__ inline uint32_t nvfp4_scale(uint32_t code) {
  const uint32_t bits = ((code & 0x80u) << 8 | (code & 0x7fu) << 4) * 0x10001u;             // times 2^-120
  const uint32_t scale = multiply_bf16x2(multiply_bf16x2(bits, 0x7b807b80u), 0x7b007b00u);  // 2^120, 2^119
  return (code & 0x7fu) == 0x7fu ? 0x7fc07fc0u : scale;
}

// What one lane holds of a unit: rows g and g + 8.
template <Coding coding>
struct Loaded {
  uint4 low[Unit<coding>::kLoads], high[Unit<coding>::kLoads];
  float scale = 1;                           // Fp8Block
  uint32_t scales_low = 0, scales_high = 0;  // Nvfp4: two codes each
};

__device__ inline uint4 load_once(const uint8_t* p) { return __ldcs(reinterpret_cast<const uint4*>(p)); }

template <Coding coding>
__device__ void load_unit(const Mat& w, int64_t low, int64_t high, int64_t unit, Loaded<coding>& out) {
  using U = Unit<coding>;
  constexpr int kBits = coding == Coding::Bf16 ? 16 : coding == Coding::Nvfp4 ? 4 : 8;
  const int q = static_cast<int>(threadIdx.x) % 4;
  const int64_t at = unit * U::kElements * kBits / 8 + 16 * q;
  const int64_t row_bytes = w.k * kBits / 8;
#pragma unroll
  for (int i = 0; i < U::kLoads; ++i) {
    out.low[i] = load_once(w.data + low * row_bytes + at + 64 * i);
    out.high[i] = load_once(w.data + high * row_bytes + at + 64 * i);
  }
  if constexpr (coding == Coding::Fp8Block) out.scale = block_scale(w, low / 128 * w.scale_ld + unit);
  if constexpr (coding == Coding::Nvfp4) {
    const int64_t scale_at = unit * 8 + 2 * q;
    out.scales_low = *reinterpret_cast<const uint16_t*>(w.scale + low * w.scale_ld + scale_at);
    out.scales_high = *reinterpret_cast<const uint16_t*>(w.scale + high * w.scale_ld + scale_at);
  }
}

// x of this lane's column for 8 elements of k from `at`.
__device__ inline uint4 load_column(const uint16_t* column, int64_t at) {
  return column == nullptr ? uint4{0, 0, 0, 0} : __ldg(reinterpret_cast<const uint4*>(column + at));
}

// The scales of a lane's 32 elements, each twice, as decoding takes them.
template <bool half>
__device__ void decode_scales(uint32_t codes, uint32_t (&out)[2]) {
  if constexpr (half) {
    const uint32_t both = multiply_f16x2(halves_of(codes), 0x58005800u);  // 2^7
    out[0] = __byte_perm(both, 0, 0x1010), out[1] = __byte_perm(both, 0, 0x3232);
  } else {
    out[0] = nvfp4_scale(codes & 0xffu), out[1] = nvfp4_scale(codes >> 8 & 0xffu);
  }
}

// a: two steps of 16 elements of k, from the 8 elements a lane holds at words `low` and `high`.
template <Coding coding, bool half>
__device__ void decode_eight(const Loaded<coding>& in, int load, int part, uint32_t (&a)[2][4]) {
  const uint32_t low[4] = {in.low[load].x, in.low[load].y, in.low[load].z, in.low[load].w};
  const uint32_t high[4] = {in.high[load].x, in.high[load].y, in.high[load].z, in.high[load].w};
  if constexpr (coding == Coding::Bf16) {
    a[0][0] = low[0], a[0][1] = high[0], a[0][2] = low[1], a[0][3] = high[1];
    a[1][0] = low[2], a[1][1] = high[2], a[1][2] = low[3], a[1][3] = high[3];
  } else if constexpr (coding == Coding::Nvfp4) {
    uint32_t scales_low[2], scales_high[2];
    decode_scales<half>(in.scales_low, scales_low);
    decode_scales<half>(in.scales_high, scales_high);
    const uint32_t l = low[part], h = high[part], sl = scales_low[part / 2], sh = scales_high[part / 2];
    if constexpr (half) {
      a[0][0] = halves_of_e2m1<0>(l, sl), a[0][1] = halves_of_e2m1<0>(h, sh);
      a[0][2] = halves_of_e2m1<1>(l, sl), a[0][3] = halves_of_e2m1<1>(h, sh);
      a[1][0] = halves_of_e2m1<2>(l, sl), a[1][1] = halves_of_e2m1<2>(h, sh);
      a[1][2] = halves_of_e2m1<3>(l, sl), a[1][3] = halves_of_e2m1<3>(h, sh);
    } else {
      a[0][0] = decode_e2m1<0>(l, sl), a[0][1] = decode_e2m1<0>(h, sh);
      a[0][2] = decode_e2m1<1>(l, sl), a[0][3] = decode_e2m1<1>(h, sh);
      a[1][0] = decode_e2m1<2>(l, sl), a[1][1] = decode_e2m1<2>(h, sh);
      a[1][2] = decode_e2m1<3>(l, sl), a[1][3] = decode_e2m1<3>(h, sh);
    }
  } else {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const uint32_t l = low[2 * part + step], h = high[2 * part + step];
      if constexpr (half) {
        a[step][0] = halves_of(l), a[step][1] = halves_of(h);
        a[step][2] = halves_of(l >> 16), a[step][3] = halves_of(h >> 16);
      } else {
        a[step][0] = decode_e4m3<false>(l), a[step][1] = decode_e4m3<false>(h);
        a[step][2] = decode_e4m3<true>(l), a[step][3] = decode_e4m3<true>(h);
      }
    }
  }
}

template <Coding coding, bool half, int tiles, int strips>
__device__ void multiply_unit(const Loaded<coding> (&in)[strips], int64_t unit, const uint16_t* const (&column)[tiles],
                              float (&sum)[strips][tiles][4], uint32_t (&nan)[strips][2]) {
  using U = Unit<coding>;
  constexpr bool kBlock = coding == Coding::Fp8Block;
  const int q = static_cast<int>(threadIdx.x) % 4;
  float block[strips][tiles][4] = {};
#pragma unroll
  for (int i = 0; i < U::kLoads; ++i) {
    const int64_t at = unit * U::kElements + U::kElements / U::kLoads * i + U::kPerLoad * q;
    uint4 x[U::kPerLoad / 8][tiles];
#pragma unroll
    for (int part = 0; part < U::kPerLoad / 8; ++part)
#pragma unroll
      for (int n = 0; n < tiles; ++n) x[part][n] = load_column(column[n], at + 8 * part);
#pragma unroll
    for (int part = 0; part < U::kPerLoad / 8; ++part) {
#pragma unroll
      for (int s = 0; s < strips; ++s) {
        uint32_t a[2][4];
        decode_eight<coding, half>(in[s], i, part, a);
        if constexpr (!half && (coding == Coding::Fp8Block || coding == Coding::Fp8Row)) {
          const uint4 l = in[s].low[i], h = in[s].high[i];
          nan[s][0] |= part == 0 ? has_nan(l.x) | has_nan(l.y) : has_nan(l.z) | has_nan(l.w);
          nan[s][1] |= part == 0 ? has_nan(h.x) | has_nan(h.y) : has_nan(h.z) | has_nan(h.w);
        }
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
          auto& to = kBlock ? block[s][n] : sum[s][n];
          if constexpr (half) {
            mma_f16(to, a[0], x[part][n].x, x[part][n].y);
            mma_f16(to, a[1], x[part][n].z, x[part][n].w);
          } else {
            mma(to, a[0], x[part][n].x, x[part][n].y);
            mma(to, a[1], x[part][n].z, x[part][n].w);
          }
        }
      }
    }
  }
  if constexpr (kBlock) {
#pragma unroll
    for (int s = 0; s < strips; ++s)
#pragma unroll
      for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[s][n][i] = fmaf(in[s].scale, block[s][n][i], sum[s][n][i]);
  }
}

// A warp multiplies `strips` tiles of 16 rows, so that a column is loaded once for all.
template <Coding coding, int strips>
struct Batch {
  static constexpr int kUnroll = Unit<coding>::kUnroll / strips > 0 ? Unit<coding>::kUnroll / strips : 1;
  Loaded<coding> in[kUnroll][strips];

  __device__ void load(const Mat& w, int64_t row, int64_t first) {
    const int64_t units = w.k / Unit<coding>::kElements;
    const int64_t g = static_cast<int64_t>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      if (first + j * kWarps >= units) continue;
#pragma unroll
      for (int s = 0; s < strips; ++s) {
        const int64_t low = min(row + kTileRows * s + g, w.n - 1), high = min(row + kTileRows * s + g + 8, w.n - 1);
        load_unit<coding>(w, low, high, first + j * kWarps, in[j][s]);
      }
    }
  }
};

// sum += this warp's share of k: every kWarps-th unit, in ascending order. The columns may be another kernel's that
// still runs: the first weights are asked for before waiting for it.
template <Coding coding, bool half, int tiles, int strips>
__device__ void multiply_tile(const Mat& w, int64_t row, const uint16_t* const (&column)[tiles],
                              float (&sum)[strips][tiles][4]) {
  using B = Batch<coding, strips>;
  const int64_t units = w.k / Unit<coding>::kElements;
  constexpr int64_t kStep = kWarps * B::kUnroll;
  int64_t first = static_cast<int64_t>(threadIdx.x) / 32;
  uint32_t nan[strips][2] = {};
  B now;
  now.load(w, row, first);
  cudaGridDependencySynchronize();
  while (first < units) {
#pragma unroll
    for (int j = 0; j < B::kUnroll; ++j) {
      if (first + j * kWarps >= units) continue;
      multiply_unit<coding, half, tiles, strips>(now.in[j], first + j * kWarps, column, sum, nan);
    }
    first += kStep;
    now.load(w, row, first);
  }
  if constexpr (!half && (coding == Coding::Fp8Block || coding == Coding::Fp8Row)) {
#pragma unroll
    for (int s = 0; s < strips; ++s)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t any = nan[s][i];
        any |= __shfl_xor_sync(~0u, any, 1);
        any |= __shfl_xor_sync(~0u, any, 2);
        if (any == 0) continue;
#pragma unroll
        for (int n = 0; n < tiles; ++n) sum[s][n][2 * i] = sum[s][n][2 * i + 1] = bits_to_f32(0x7fc00000u);
      }
  }
}

}  // namespace plumb::cuda
