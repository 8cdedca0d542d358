#include "tensor/format.h"

namespace plumb {
namespace {

const char* element_name(DType type) {
  switch (type) {
    case DType::F32:
      return "f32";
    case DType::F16:
      return "f16";
    case DType::BF16:
      return "bf16";
    case DType::F8E4M3:
      return "e4m3";
    case DType::F8E5M2:
      return "e5m2";
    case DType::F4E2M1:
      return "e2m1";
    default:
      return dtype_name(type).data();
  }
}

const char* scale_name(ScaleType type) {
  switch (type) {
    case ScaleType::None:
      return "none";
    case ScaleType::F32:
      return "f32";
    case ScaleType::UE8M0:
      return "ue8m0";
    case ScaleType::UE4M3:
      return "ue4m3";
  }
  return "?";
}

std::string extent(int block) { return block == 0 ? "all" : std::to_string(block); }

}  // namespace

std::string Format::to_string() const {
  if (scale == ScaleType::None) return element_name(element);
  const bool fp8 = element == DType::F8E4M3;
  const char* family = element == DType::F4E2M1 && block_k == 16 && global_scale ? "nvfp4"
                       : fp8 && block_n == 0                                     ? "fp8_tensor"
                       : fp8 && block_k == 0                                     ? "fp8_channel"
                       : fp8                                                     ? "fp8_block"
                                                                                 : "scaled";
  return std::string(family) + "(" + element_name(element) + "/" + extent(block_n) + "x" + extent(block_k) + "/" +
         scale_name(scale) + (global_scale ? "+f32" : "") + ")";
}

std::string to_string(Layout layout) {
  switch (layout) {
    case Layout::RowMajor:
      return "row_major";
    case Layout::CudaRowMajor:
      return "cuda_row_major";
    case Layout::CpuStrip16:
      return "cpu_strip16";
  }
  return "?";
}

}  // namespace plumb
