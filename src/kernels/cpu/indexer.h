// Index scores of some rows against a few keys: what an instruction set provides.
#pragma once

#include <cstdint>

#include "ops/args.h"

namespace plumb::cpu {

inline constexpr int64_t kIndexMaxDim = 512;

// Rows [row, row + rows) of one sequence against the keys at positions first ... first + keys - 1. Columns beyond a
// row's own position are not touched.
struct IndexerJob {
  const IndexerLogitsArgs& args;
  int row = 0, rows = 0;
  int64_t first = 0;
};
struct IndexerTier {
  int keys = 1;  // scored at once, a lane each
  void (*score)(const IndexerJob& job) = nullptr;
};
extern const IndexerTier kIndexerGeneric;
#if defined(__x86_64__)
extern const IndexerTier kIndexerAvx2;
extern const IndexerTier kIndexerAvx512;
#endif

}  // namespace plumb::cpu
