#include "tensor/dtype.h"

#include <array>

namespace plumb {
namespace {

struct Row {
  DType type;
  std::string_view name;
  int bits;
};
constexpr std::array kRows{
    Row{DType::F32, "F32", 32},       Row{DType::F16, "F16", 16},       Row{DType::BF16, "BF16", 16},
    Row{DType::F8E4M3, "F8_E4M3", 8}, Row{DType::F8E5M2, "F8_E5M2", 8}, Row{DType::F8E8M0, "F8_E8M0", 8},
    Row{DType::F4E2M1, "F4", 4},      Row{DType::F64, "F64", 64},       Row{DType::I64, "I64", 64},
    Row{DType::I32, "I32", 32},       Row{DType::I16, "I16", 16},       Row{DType::I8, "I8", 8},
    Row{DType::U64, "U64", 64},       Row{DType::U32, "U32", 32},       Row{DType::U16, "U16", 16},
    Row{DType::U8, "U8", 8},          Row{DType::Bool, "BOOL", 8},
};

const Row& row(DType type) {
  for (const Row& r : kRows)
    if (r.type == type) return r;
  return kRows[0];
}

}  // namespace

int bits(DType type) { return row(type).bits; }
std::string_view dtype_name(DType type) { return row(type).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& r : kRows)
    if (r.name == name) return r.type;
  return std::nullopt;
}

}  // namespace plumb
