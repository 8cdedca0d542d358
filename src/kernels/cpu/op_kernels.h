// What the kernels of ops without matrix products share.
#pragma once

#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/kernel.h"

namespace plumb {

// Every CPU kernel of an op without matrix products.
std::vector<Kernel> cpu_op_kernels();

namespace cpu {

// f(worker, workers) on every worker of the stream; on the caller alone if it has none.
template <class F>
void on_each_worker(const Stream& stream, F&& f) {
  if (stream.pool == nullptr) return f(0, 1);
  stream.pool->parallel(f);
}
// f(row) for the rows of each worker's part.
template <class F>
void for_each_row(const Stream& stream, int64_t rows, F&& f) {
  if (rows == 1) return f(int64_t{0});  // not worth waking anybody
  on_each_worker(stream, [&](int worker, int workers) {
    const Range range = split(rows, worker, workers);
    for (int64_t row = range.begin; row < range.end; ++row) f(row);
  });
}

// "op.kind.isa": float32 in and out, every numerical choice, the same bits whatever the batch and the workers.
Contract op_contract(Op op, const char* kind, Isa isa);

void add_attend_kernels(std::vector<Kernel>& out);   // attend_kernels.cpp
void add_indexer_kernels(std::vector<Kernel>& out);  // indexer_kernels.cpp
void add_topk_kernels(std::vector<Kernel>& out);     // topk_kernels.cpp
void add_norm_kernels(std::vector<Kernel>& out);     // norm_kernels.cpp
void add_cache_kernels(std::vector<Kernel>& out);    // kv_write_kernels.cpp
void add_sample_kernels(std::vector<Kernel>& out);   // sample_kernels.cpp

}  // namespace cpu
}  // namespace plumb
