#include "kernels/cpu/product.h"

#include "kernels/cpu/strip16_kernels.h"

namespace plumb::cpu {

void pack_tiles(const Tier& tier, const Rows& rows, int begin, int end, std::byte* out) {
  tier.pack({.x = rows.x,
             .ld = rows.ld,
             .index = rows.index,
             .k = rows.k,
             .rows = rows.count,
             .tile_begin = begin,
             .tile_end = end,
             .out = out});
}

Range split_strips(int64_t strips, int group, int worker, int workers) {
  const int64_t groups = ceil_div(strips, group);
  if (groups < 4 * workers) return split(strips, worker, workers);
  const Range range = split(groups, worker, workers);
  return {range.begin * group, std::min(range.end * group, strips)};
}

int chunks(int rows) { return static_cast<int>(ceil_div(rows, kChunkRows)); }

Range chunk_rows(int rows, int chunk) {
  const Range range = split(tiles(rows), chunk, chunks(rows));
  return {range.begin * kTileRows, std::min<int64_t>(range.end * kTileRows, rows)};
}

GroupResult run_chunk(const Tier& tier, const GroupCall& call, int chunk, float* sums) {
  const Range rows = chunk_rows(call.rows, chunk);
  const int count = static_cast<int>(rows.end - rows.begin);
  tier.group({.w = call.w,
              .packed = call.packed + rows.begin * tier.packed_row_bytes(call.w.k),
              .rows = count,
              .strip = call.strip,
              .strips = call.strips,
              .out = sums});
  return {.n0 = call.strip * kStrip,
          .outputs = static_cast<int>(std::min<int64_t>(call.strips * kStrip, call.w.n - call.strip * kStrip)),
          .row0 = static_cast<int>(rows.begin),
          .rows = count,
          .values = sums,
          .ld = call.strips * kStrip};
}

std::vector<Family> families(Isa isa) {
  std::vector<Family> all{
      {"bf16", {kBf16}}, {"fp8", {kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel}}, {"nvfp4", {kNvfp4}}};
  if (isa != Isa::Avx512Bf16) all.push_back({"float", {kF32, kF16}});
  return all;
}

Contract strip_contract(Op op, const Family& family, Isa isa) {
  const bool bf16 = isa == Isa::Avx512Bf16;
  const bool fp4 = family.formats.front() == kNvfp4;
  Contract contract{.op = op, .weight = family.formats, .weight_layout = Layout::CpuStrip16, .arch = isa};
  contract.reads = {bf16 ? kBf16 : kF32};
  contract.limits.k_max = 65536;
  if (fp4) contract.limits.k_multiple = 16;
  contract.round_bf16 = true;
  contract.deterministic = true;
  contract.batch_invariant = true;
  contract.flushes_denormals = bf16;
  // AVX2 and AVX-512 do the same fused operations lane by lane; without fusing the bits differ.
  contract.sum_order = bf16 ? (fp4 ? "strip16.k16.pairs" : "strip16.k128.pairs")
                            : (isa == Isa::Generic ? "strip16.k128" : "strip16.k128.fma");
  // Beside what sums of n terms in f32 lose. bf16: rounding an activation. f32: the block, row and global scales'
  // products.
  contract.error_bound =
      bf16 ? ErrorBound{.c = 1, .unit = DType::BF16, .floor = 1e-30} : ErrorBound{.c = 4, .unit = DType::F32};
  // Measured on one core of a Zen 4, BF16, 512 rows: 204, 86, 60 and 26 GFLOP/s (docs/performance.md).
  contract.preference = bf16 ? 40 : isa == Isa::Avx512 ? 30 : isa == Isa::Avx2 ? 20 : 10;
  return contract;
}

}  // namespace plumb::cpu

namespace plumb {

std::vector<Kernel> cpu_strip_kernels() {
  std::vector<Kernel> all = cpu::linear_kernels();
  for (auto* list : {&cpu::moe_kernels, &cpu::router_kernels})
    for (Kernel& kernel : (*list)()) all.push_back(std::move(kernel));
  return all;
}

}  // namespace plumb
