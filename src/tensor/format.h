// Format: how real numbers are encoded. One value, compared whole: two formats that differ in any field are different
// formats, so f32 and ue8m0 block scales never match each other (trust.md section 1, formats.md).
#pragma once

#include <cstdint>
#include <string>

#include "tensor/dtype.h"

namespace plumb {

// Type of one block's scale.
enum class ScaleType : uint8_t { None, F32, UE8M0, UE4M3 };

struct Format {
  DType element = DType::F32;
  // Elements that share one scale: [block_n, block_k]; 0 means "all of that dimension". 1x1 for unscaled formats.
  int block_n = 1;
  int block_k = 1;
  ScaleType scale = ScaleType::None;
  bool global_scale = false;  // one more f32 factor for the whole tensor (NVFP4's weight_scale_2)

  friend bool operator==(const Format&, const Format&) = default;
  bool quantised() const { return scale != ScaleType::None; }
  // "bf16", "fp8_block(e4m3/128x128/f32)", "nvfp4(e2m1/1x16/ue4m3+f32)": stable, shown to users, part of the plan.
  std::string to_string() const;
};

inline constexpr Format kF32{DType::F32};
inline constexpr Format kF16{DType::F16};
inline constexpr Format kBf16{DType::BF16};
inline constexpr Format kFp8BlockF32{DType::F8E4M3, 128, 128, ScaleType::F32, false};
inline constexpr Format kFp8BlockUe8m0{DType::F8E4M3, 128, 128, ScaleType::UE8M0, false};
inline constexpr Format kFp8Tensor{DType::F8E4M3, 0, 0, ScaleType::F32, false};   // one scale a tensor
inline constexpr Format kFp8Channel{DType::F8E4M3, 1, 0, ScaleType::F32, false};  // one scale an output row
inline constexpr Format kNvfp4{DType::F4E2M1, 1, 16, ScaleType::UE4M3, true};
// Activations: per token and 128 channels.
inline constexpr Format kFp8Act128F32{DType::F8E4M3, 1, 128, ScaleType::F32, false};
inline constexpr Format kFp8Act128Ue8m0{DType::F8E4M3, 1, 128, ScaleType::UE8M0, false};

// Layout: arrangement of the same numbers in memory. Never changes a value. A kernel names the one it reads; the loader
// converts to it, exactly. Every layout but RowMajor is private to the kernels that name it.
enum class Layout : uint8_t {
  RowMajor,      // as the file has it: data [n, k], scales [ceil(n/block_n), ceil(k/block_k)]
  CudaRowMajor,  // on a GPU: data, scales and global scale one after the other; see kernels/cuda/device_types.cuh
  CpuStrip16,    // strips of 16 output rows, a lane an output; see kernels/cpu/strip16.h
};
std::string to_string(Layout layout);

}  // namespace plumb
