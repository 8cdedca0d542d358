// MlaAttend for the instruction sets of attend.h.
#include "kernels/cpu/op_kernels.h"

#include <algorithm>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cpu/attend.h"

namespace plumb::cpu {
namespace {

template <const AttendTier& tier>
void mla_attend(const MlaAttendArgs& args, Stream& stream) {
  const int rows = args.paging.rows;
  const int groups = (args.heads + kAttendHeads - 1) / kAttendHeads;
  PLUMB_CHECK(args.kv_b->k() <= kAttendMaxRank && args.kv_b->k() + args.rope_dim + 32 <= kAttendMaxWidth,
              "a latent row longer than the kernel's contract allows");
  // Many rows share a decoding of kv_b; few enough that every worker has something to do.
  const int workers = stream.pool == nullptr ? 1 : stream.pool->size();
  int tile = kAttendRows;
  while (tile > 1 && groups * ((rows + tile - 1) / tile) < 2 * workers) tile /= 2;
  const int units = groups * ((rows + tile - 1) / tile);
  on_each_worker(stream, [&](int worker, int of) {
    for (int unit = worker; unit < units; unit += of) {
      const int head = unit % groups * kAttendHeads;
      const int row = unit / groups * tile;
      tier.attend({.args = args,
                   .head = head,
                   .heads = std::min(kAttendHeads, args.heads - head),
                   .row = row,
                   .rows = std::min(tile, rows - row)});
    }
  });
}

template <const AttendTier& tier>
Kernel attend_kernel(Isa isa, int preference) {
  Contract contract = op_contract(Op::MlaAttend, "absorbed", isa);
  contract.weight = {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4};
  contract.kv = {KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8Tile128};
  contract.limits.k_max = kAttendMaxRank;
  contract.preference = preference;
  return make_kernel<MlaAttendArgs, mla_attend<tier>>(std::move(contract));
}

}  // namespace

void add_attend_kernels(std::vector<Kernel>& out) {
  out.push_back(attend_kernel<kAttendGeneric>(Isa::Generic, 10));
#if defined(__x86_64__)
  out.push_back(attend_kernel<kAttendAvx2>(Isa::Avx2, 20));
  out.push_back(attend_kernel<kAttendAvx512>(Isa::Avx512, 30));
#endif
}

}  // namespace plumb::cpu
