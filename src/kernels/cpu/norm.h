// RMSNorm of one row, shared by the ops that contain one.
#pragma once

#include <cstdint>

#include "ops/args.h"

namespace plumb::cpu {

struct NormJob {
  const float* x = nullptr;
  const float* weight = nullptr;
  float* y = nullptr;  // may be x
  int64_t n = 0;
  double eps = 0;
};
void norm_row(const NormJob& job, const Numerics& numerics);

}  // namespace plumb::cpu
