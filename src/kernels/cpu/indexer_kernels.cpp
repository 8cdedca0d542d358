// IndexerLogits for the instruction sets of indexer.h.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/indexer.h"
#include "kernels/cpu/op_kernels.h"

namespace plumb::cpu {
namespace {

// Rows from `row` on that belong to one sequence and come in order of their positions, so that the last one sees most.
int run_of_rows(const Paging& paging, int row) {
  int end = row + 1;
  while (end < paging.rows && paging.sequence[end] == paging.sequence[row] &&
         paging.positions[end] >= paging.positions[end - 1])
    ++end;
  return end - row;
}

void fill_beyond(const IndexerLogitsArgs& args, int row) {
  const int64_t columns = args.logits.dim(1);
  float* logits = args.logits.row_f32(row);
  std::fill(logits + std::clamp<int64_t>(int64_t{args.paging.positions[row]} + 1, 0, columns), logits + columns,
            -std::numeric_limits<float>::infinity());
}

// Blocks of keys go round the workers, so that each has as many early ones, which more rows see, as the others.
template <const IndexerTier& tier>
void indexer_logits(const IndexerLogitsArgs& args, Stream& stream) {
  PLUMB_CHECK(args.head_dim <= kIndexMaxDim, "index heads longer than the kernel's contract allows");
  on_each_worker(stream, [&](int worker, int workers) {
    int64_t block = 0;
    for (int row = 0; row < args.paging.rows;) {
      const int rows = run_of_rows(args.paging, row);
      if (args.paging.sequence[row] >= 0) {
        const int64_t length =
            std::min<int64_t>(int64_t{args.paging.positions[row + rows - 1]} + 1, args.logits.dim(1));
        for (int64_t first = 0; first < length; first += tier.keys, ++block) {
          if (block % workers == worker) tier.score({.args = args, .row = row, .rows = rows, .first = first});
        }
        for (int r = row + worker; r < row + rows; r += workers) fill_beyond(args, r);
      }
      row += rows;
    }
  });
}

template <const IndexerTier& tier>
Kernel indexer_kernel(Isa isa, int preference) {
  Contract contract = op_contract(Op::IndexerLogits, "lane_per_key", isa);
  contract.index_key = {IndexKeyFormat::F32, IndexKeyFormat::Bf16, IndexKeyFormat::Fp8};
  contract.limits.k_max = kIndexMaxDim;
  contract.preference = preference;
  return make_kernel<IndexerLogitsArgs, indexer_logits<tier>>(std::move(contract));
}

}  // namespace

void add_indexer_kernels(std::vector<Kernel>& out) {
  out.push_back(indexer_kernel<kIndexerGeneric>(Isa::Generic, 10));
#if defined(__x86_64__)
  out.push_back(indexer_kernel<kIndexerAvx2>(Isa::Avx2, 20));
  out.push_back(indexer_kernel<kIndexerAvx512>(Isa::Avx512, 30));
#endif
}

}  // namespace plumb::cpu
