// What Linear, Mlp, Moe and Router share around a tier's products: splitting over workers, packing rows, contracts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "device/stream.h"
#include "kernels/cpu/tier.h"
#include "ops/contract.h"
#include "ops/kernel.h"

namespace plumb::cpu {

// f(worker, workers) on every worker of the stream.
template <class F>
void on_workers(const Stream& stream, F&& f) {
  if (stream.pool == nullptr) return f(0, 1);
  stream.pool->parallel(f);
}

// Rows small enough are packed by each worker for itself, on its stack: cheaper than meeting once more.
inline constexpr int64_t kOwnPackBytes = 32768;

struct Rows {
  const float* x = nullptr;
  int64_t ld = 0;
  const int32_t* index = nullptr;  // rows of x to take; null: all in order
  int count = 0;
  int64_t k = 0;
};
inline int tiles(int64_t rows) { return static_cast<int>(ceil_div(rows, kTileRows)); }
inline int64_t packed_bytes(const Tier& tier, const Rows& rows) { return rows.count * tier.packed_row_bytes(rows.k); }
// Tiles [begin, end) of the rows to `out`, where the first tile begins.
void pack_tiles(const Tier& tier, const Rows& rows, int begin, int end, std::byte* out);

// Strips of worker `worker`: whole groups of `group` while there are enough of them for everyone.
Range split_strips(int64_t strips, int group, int worker, int workers);
// Rows of chunk number `chunk`: as few and as equal as kChunkRows allows, made of whole tiles.
int chunks(int rows);
Range chunk_rows(int rows, int chunk);

// One finished group, for the op to store: outputs n0 ... n0 + outputs - 1 of rows [row0, row0 + rows).
struct GroupResult {
  int64_t n0 = 0;
  int outputs = 0;
  int row0 = 0;
  int rows = 0;
  const float* values = nullptr;  // [rows][ld]
  int64_t ld = 0;
};

// One group of w times every chunk of the packed rows; store(GroupResult) for each. `sums`: kGroupFloats, aligned.
struct GroupCall {
  const StripMatrix& w;
  const std::byte* packed = nullptr;
  int rows = 0;
  int64_t strip = 0;
  int strips = 0;
};
GroupResult run_chunk(const Tier& tier, const GroupCall& call, int chunk, float* sums);

// Strips `range` of w times the packed rows; store(GroupResult) for every group and chunk.
template <class Store>
void product(const Tier& tier, const StripMatrix& w, const Range& range, const std::byte* packed, int rows,
             Store&& store) {
  alignas(64) float sums[kGroupFloats];
  const int width = tier.group_strips(w.coding, rows);
  for (int64_t s = range.begin; s < range.end; s += width) {
    const GroupCall call{.w = w,
                         .packed = packed,
                         .rows = rows,
                         .strip = s,
                         .strips = static_cast<int>(std::min<int64_t>(width, range.end - s))};
    for (int c = 0; c < chunks(rows); ++c) store(run_chunk(tier, call, c, sums));
  }
}

// Formats that one kernel takes together: the same code paths, so one name in plans and benchmarks.
struct Family {
  const char* name = "";
  std::vector<Format> formats{};
};
// Those that the tier has, for an op's weights.
std::vector<Family> families(Isa isa);
// Contract of an op over strips: everything but name's op, workspace and bound's factor.
Contract strip_contract(Op op, const Family& family, Isa isa);

std::vector<Kernel> linear_kernels();
std::vector<Kernel> moe_kernels();
std::vector<Kernel> router_kernels();

}  // namespace plumb::cpu
