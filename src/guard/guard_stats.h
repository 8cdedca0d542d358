// What the guard has counted, as other threads may see it.
#pragma once

#include <array>
#include <cstdint>

namespace plumb {

struct ShadowCounts {
  // Largest |error| / bound of an op: how many up to each edge, and beyond the last.
  static constexpr std::array<double, 7> kRatioEdges = {0.01, 0.03, 0.1, 0.3, 0.6, 0.9, 1.0};
  uint64_t steps = 0, skipped = 0, ops = 0, outside = 0;
  uint64_t waiting = 0;  // records that have not been judged yet
  std::array<uint64_t, kRatioEdges.size() + 1> ratio{};
  double ratio_sum = 0;
};

struct GuardStats {
  uint64_t nan_rows = 0, inf_rows = 0, drift_rows = 0;
  uint64_t captures_written = 0, captures_dropped = 0;
  uint64_t cache_codes = 0, saturated_codes = 0;  // of an FP8 cache
  ShadowCounts shadow{};
};

}  // namespace plumb
