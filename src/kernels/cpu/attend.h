// Sparse MLA attention in absorbed form, for one group of heads and a few rows: what an instruction set provides.
#pragma once

#include <cstdint>

#include "ops/args.h"

namespace plumb::cpu {

inline constexpr int kAttendHeads = 4;  // heads that share a decoded block of the cache
inline constexpr int kAttendRows = 16;  // rows that share a decoded part of kv_b
inline constexpr int64_t kAttendMaxRank = 1024;
inline constexpr int64_t kAttendMaxWidth = 2048;  // kv_lora_rank + rope_dim

struct AttendJob {
  const MlaAttendArgs& args;
  int head = 0, heads = 0;  // at most kAttendHeads
  int row = 0, rows = 0;    // at most kAttendRows
};
struct AttendTier {
  void (*attend)(const AttendJob& job) = nullptr;
};
extern const AttendTier kAttendGeneric;
#if defined(__x86_64__)
extern const AttendTier kAttendAvx2;
extern const AttendTier kAttendAvx512;
#endif

}  // namespace plumb::cpu
