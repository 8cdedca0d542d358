// What every CUDA kernel shares: activations of f32 or bf16, weights as they lie on the device, exact decoding.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/check.h"
#include "device/stream.h"
#include "ops/args.h"
#include "tensor/dequant.h"
#include "tensor/encode.h"

namespace plumb::cuda {

// Activations [rows, n], f32 or bf16 by dtype; element (t, i) at t * ld + i.
struct Act {
  void* data = nullptr;
  int64_t ld = 0;
  bool bf16 = false;

  __device__ float load(int64_t t, int64_t i) const {
    const int64_t at = t * ld + i;
    return bf16 ? bf16_to_f32(static_cast<const uint16_t*>(data)[at]) : static_cast<const float*>(data)[at];
  }
  // Rounds once, from double; to bf16 where memory or `round` asks for it.
  __device__ void store(int64_t t, int64_t i, double value, bool round) const {
    const int64_t at = t * ld + i;
    const float f = static_cast<float>(value);
    if (bf16) {
      static_cast<uint16_t*>(data)[at] = f32_to_bf16(f);
    } else {
      static_cast<float*>(data)[at] = round ? round_bf16(f) : f;
    }
  }
};
inline Act act(const Tensor& t) {
  PLUMB_CHECK(t.data == nullptr || t.dtype == DType::F32 || t.dtype == DType::BF16, "activations are f32 or bf16");
  return {t.data, t.ld, t.dtype == DType::BF16};
}

// One weight on the device, laid out as Layout::CudaRowMajor: data as in the file, scales as in the file, one f32
// global scale; each part begins at a multiple of kPartAlign bytes.
inline constexpr int64_t kPartAlign = 256;
inline int64_t aligned(int64_t bytes) { return (bytes + kPartAlign - 1) / kPartAlign * kPartAlign; }

struct Mat {
  const uint8_t* data = nullptr;
  const uint8_t* scale = nullptr;
  const float* global = nullptr;  // null: 1
  int64_t n = 0, k = 0;
  int64_t scale_ld = 0;          // scales of one scale row
  int block_n = 1, block_k = 1;  // 0: all of it
  DType element = DType::F32;
  ScaleType scale_type = ScaleType::None;

  __device__ float scale_at(int64_t row, int64_t col) const {
    const int64_t r = block_n == 0 ? 0 : row / block_n;
    const int64_t c = block_k == 0 ? 0 : col / block_k;
    const int64_t at = r * scale_ld + c;
    switch (scale_type) {
      case ScaleType::F32:
        return reinterpret_cast<const float*>(scale)[at];
      case ScaleType::UE8M0:
        return e8m0_to_f32(scale[at]);
      case ScaleType::UE4M3:
        return e4m3_to_f32(scale[at]);
      case ScaleType::None:
        break;
    }
    return 1.0f;
  }
  // The float32 value of formats.md, by the same two products as tensor/dequant.h.
  __device__ float at(int64_t row, int64_t col) const {
    const int64_t i = row * k + col;
    float value = 0;
    switch (element) {
      case DType::F32:
        value = reinterpret_cast<const float*>(data)[i];
        break;
      case DType::F16:
        value = f16_to_f32(reinterpret_cast<const uint16_t*>(data)[i]);
        break;
      case DType::BF16:
        value = bf16_to_f32(reinterpret_cast<const uint16_t*>(data)[i]);
        break;
      case DType::F8E4M3:
        value = e4m3_to_f32(data[i]);
        break;
      case DType::F4E2M1:
        value = e2m1_to_f32(static_cast<uint8_t>((data[i / 2] >> (4 * (i % 2))) & 15u));
        break;
      default:
        break;
    }
    if (scale_type != ScaleType::None) value *= scale_at(row, col);
    return global != nullptr ? value * *global : value;
  }
};

// Rows of `w` as the device sees them. k is even for NVFP4, so a row begins at a whole byte.
inline Mat mat(const Weight& w) {
  PLUMB_CHECK(w.layout == Layout::CudaRowMajor && w.prepared != nullptr, "the weight is not on the device");
  const Format& f = w.format();
  const auto* base = reinterpret_cast<const uint8_t*>(w.prepared);
  const int64_t data_bytes = aligned(encoded_data_bytes(f, w.n(), w.k()));
  const int64_t scale_bytes = aligned(encoded_scale_bytes(f, w.n(), w.k()));
  return {.data = base,
          .scale = base + data_bytes,
          .global = f.global_scale ? reinterpret_cast<const float*>(base + data_bytes + scale_bytes) : nullptr,
          .n = w.n(),
          .k = w.k(),
          .scale_ld = scale_cols(f, w.k()),
          .block_n = f.block_n,
          .block_k = f.block_k,
          .element = f.element,
          .scale_type = f.scale};
}

// A stack of equal matrices at equal distances: the experts of a layer.
struct Stack {
  Mat first{};
  int64_t stride = 0;  // bytes
  __device__ Mat operator[](int64_t i) const {
    Mat m = first;
    m.data += i * stride;
    m.scale += i * stride;
    if (m.global != nullptr)
      m.global = reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(m.global) + i * stride);
    return m;
  }
};
// Those of the model's experts that a rank holds: the index of an expert in their stack, below 0 for others and none.
struct Held {
  int32_t first = 0, count = 0;
  __device__ int32_t index(int32_t expert) const {
    const int32_t index = expert - first;
    return index < count ? index : -1;
  }
};
inline Held held(const MoeArgs& a) { return {a.first_expert, static_cast<int32_t>(a.gate.size())}; }

inline Stack stack(std::span<const Weight> weights) {
  Stack s{.first = mat(weights[0])};
  if (weights.size() > 1) s.stride = weights[1].prepared - weights[0].prepared;
  const auto last = static_cast<int64_t>(weights.size()) - 1;
  PLUMB_CHECK(weights[static_cast<size_t>(last)].prepared == weights[0].prepared + last * s.stride,
              "experts do not lie at equal distances");
  return s;
}

inline cudaStream_t handle(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

// Sum over a block of at most 1024 threads, in a fixed tree, given to every thread. `scratch`: 32 doubles, shared.
__device__ inline double block_sum(double value, double* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = (static_cast<int>(blockDim.x) + 31) / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[warp] = value;
  __syncthreads();
  double total = 0;
  for (int w = 0; w < warps; ++w) total += scratch[w];
  return total;
}

}  // namespace plumb::cuda
