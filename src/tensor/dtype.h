// Element types as they stand in memory, and their names in safetensors headers (formats.md section 4.2).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace plumb {

enum class DType : uint8_t {
  F32,
  F16,
  BF16,
  F8E4M3,  // "fn": bias 7, max 448, NaN 0x7f and 0xff, no infinities
  F8E5M2,
  F8E8M0,  // block scale 2^(e-127); 0xff is NaN
  F4E2M1,  // two codes a byte, low nibble first
  F64,
  I64,
  I32,
  I16,
  I8,
  U64,
  U32,
  U16,
  U8,
  Bool,
};

int bits(DType type);                                         // per element; 4 for F4E2M1
std::string_view dtype_name(DType type);                      // safetensors spelling: "BF16", "F8_E4M3", ...
std::optional<DType> dtype_from_name(std::string_view name);  // unknown: nullopt

}  // namespace plumb
