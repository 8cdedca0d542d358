// What the kernels of index logits share: where keys lie, and what a launch is told.
#pragma once

#include <bit>

#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/mma/fragments.cuh"
#include "ops/contract.h"

namespace plumb::cuda::indexer {

inline constexpr int kThreads = 256;
inline constexpr int kDim = 128;
inline constexpr int kMaxHeads = 32;

struct Scores {
  Act q, weights;
  int heads;
  float weight_scale, softmax_scale;
  float* logits;
  int64_t logits_ld, columns;
  int rounds;      // of `kernel keys` a block
  int page_shift;  // log2 of a page's tokens; -1: no power of two
};

// Where a key lies, and its scale.
template <IndexKeyFormat format>
struct KeyPlace {
  const uint8_t* row = nullptr;
  const float* scale = nullptr;

  KeyPlace() = default;
  __device__ KeyPlace(const KvView& kv, const Paging& paging, int shift, int32_t sequence, int32_t position) {
    const int column = shift >= 0 ? position >> shift : position / paging.page_tokens;
    const int slot = position - column * paging.page_tokens;
    const int64_t id = paging.page_table[static_cast<int64_t>(sequence) * paging.page_table_stride + column];
    const uint8_t* page = reinterpret_cast<const uint8_t*>(kv.index_keys) +
                          id * paging.page_tokens * (format == IndexKeyFormat::Fp8 ? kDim + 4 : 2 * kDim);
    if constexpr (format == IndexKeyFormat::Fp8) {
      row = page + slot * kDim;
      scale = reinterpret_cast<const float*>(page + static_cast<int64_t>(paging.page_tokens) * kDim) + slot;
    } else {
      row = page + slot * kDim * 2;
    }
  }
};

// max(x, 0) that leaves a NaN one.
__device__ inline float positive(float x) {
  float out;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(out) : "f"(x));
  return out;
}

// -inf for the keys behind the last one of a row that begin at `begin`.
__device__ inline void fill_beyond(const Scores& p, float* out, int64_t begin, int64_t count) {
  for (int64_t j = begin + threadIdx.x; j < min(begin + count, p.columns); j += kThreads) out[j] = -INFINITY;
}

// A block prepares its row's queries once: where there are blocks enough for every multiprocessor, it takes more than
// one round of `keys` keys. Grid: [parts of a row, rows].
inline dim3 scores_of(const IndexerLogitsArgs& a, int64_t keys, Scores& p) {
  const int page = a.paging.page_tokens;
  PLUMB_CHECK(page % 4 == 0, "a page's keys begin at a multiple of 16 bytes");
  p = {.q = act(a.q),
       .weights = act(a.weights),
       .heads = a.heads,
       .weight_scale = a.weight_scale,
       .softmax_scale = a.softmax_scale,
       .logits = a.logits.f32(),
       .logits_ld = a.logits.ld,
       .columns = a.logits.dim(1),
       .rounds = 1,
       .page_shift = (page & (page - 1)) == 0 ? std::countr_zero(static_cast<unsigned>(page)) : -1};
  const auto parts = [&](int64_t rounds) { return (p.columns + keys * rounds - 1) / (keys * rounds); };
  while (p.rounds < 64 && parts(p.rounds * 2) * a.paging.rows >= 264) p.rounds *= 2;
  return dim3(static_cast<unsigned>(parts(p.rounds)), static_cast<unsigned>(a.paging.rows));
}

inline Contract index_contract(const char* name) {
  Contract c;
  c.name = name;
  c.op = Op::IndexerLogits;
  c.limits = {.k_multiple = kDim, .k_max = kDim, .heads_max = kMaxHeads};
  c.round_bf16 = c.norm_two_roundings = c.index_hadamard = true;
  c.deterministic = c.batch_invariant = true;
  c.flushes_denormals = true;  // tensor cores take denormals for zero
  return c;
}

}  // namespace plumb::cuda::indexer
