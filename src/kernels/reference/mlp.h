// The gated MLP of chosen rows, shared by Mlp and Moe.
#pragma once

#include <span>

#include "kernels/reference/common.h"

namespace plumb::reference {

struct MlpRows {
  const Weight* gate = nullptr;
  const Weight* up = nullptr;
  const Weight* down = nullptr;
  std::span<const float* const> x{};  // rows of [hidden]
  double* y = nullptr;                // [rows, hidden], not yet rounded
};
// In bf16 arithmetic gate, up, silu and product are each rounded (model.md 3.10); else all between is float64.
void mlp_rows(const MlpRows& args, const Numerics& numerics, Stream& stream);

double silu(double x);

}  // namespace plumb::reference
