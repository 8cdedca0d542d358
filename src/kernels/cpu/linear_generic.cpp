// Products in f32 with what every machine of the architecture has: vectors of four, no fused multiply-add.
#include <cstdint>

namespace plumb::cpu {
namespace {
namespace isa {

constexpr int kWidth = 4;
constexpr int kRegisters = 16;
using V = float __attribute__((vector_size(16)));
inline V fma(V a, V b, V c) { return a * b + c; }
// 0 and 0.5 apart, a code's exponent and mantissa are a float's, bias corrected.
inline V e2m1(uint32_t __attribute__((vector_size(16))) code) {
  using U4 = uint32_t __attribute__((vector_size(16)));
  const U4 magnitude = code & 7u;
  const U4 normal = (magnitude << 22) + 0x3f000000u;
  const U4 small = (0u - magnitude) & 0x3f000000u;
  const U4 is_small = U4(magnitude < 2u);
  return V((is_small & small) | (~is_small & normal) | ((code & 8u) << 28));
}

}  // namespace isa
}  // namespace
}  // namespace plumb::cpu

#include "kernels/cpu/linear_f32.h"

namespace plumb::cpu {
const Tier kTierGeneric{
    .group_strips = isa::group_strips, .pack = isa::pack, .group = isa::group, .gate = gate_product};
}  // namespace plumb::cpu
