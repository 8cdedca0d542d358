// One launch, or some of its rows, with all that these rows depend on copied to host memory: inputs as they were before
// it, outputs as it left them, and the part of the cache they read or wrote. Weights are referred to. A record outlives
// the step, can be judged on another thread, and is what a capture holds.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "guard/op_args.h"
#include "ops/executor.h"

namespace plumb {

class Storage {
 public:
  std::byte* take(size_t bytes);  // zeroed, aligned for any kernel's weights and workspace
  template <class T>
  T* array(size_t count) {
    return reinterpret_cast<T*>(take(count * sizeof(T)));
  }
  // A tensor of the same shape in host memory, without gaps.
  Tensor like(const Tensor& tensor);
  size_t bytes() const { return bytes_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* block) const { ::operator delete(block, kAlign); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> blocks_{};
  size_t bytes_ = 0;
};

class OpRecord {
 public:
  // An op whose rows don't stand for themselves has no record, nor has one whose inputs are not all here.
  static bool possible(Op op) { return op != Op::DraftSet && op != Op::AllReduce && op != Op::GatherColumns; }
  // How many rows of a call a record of about `bytes` can hold, at least one; index keys, which rows share, not
  // counted.
  static int64_t rows_within(const OpCall& call, int64_t bytes);
  // Rows [first, first + count) of a call that is about to run. Padding rows are copied too, and judged by nobody where
  // the op can tell them apart.
  OpRecord(const OpCall& call, int64_t first, int64_t count, Executor& executor);
  OpRecord(OpRecord&&) = default;
  OpRecord& operator=(OpRecord&&) = default;
  // The same call, once it has run.
  void finish(const OpCall& call, Executor& executor);

  SiteId site() const { return site_; }
  const Kernel& kernel() const { return *kernel_; }
  int64_t rows() const { return count_; }
  int32_t step_row(int64_t row) const { return step_rows_[static_cast<size_t>(row)]; }
  size_t bytes() const { return storage_.bytes(); }
  const AnyArgs& before() const { return before_; }  // inputs
  const AnyArgs& have() const { return have_; }      // outputs
  // The same inputs with outputs in `storage`: what another kernel can be launched on.
  AnyArgs again(Storage& storage) const;
  // One of its rows as a record of its own.
  OpRecord row(int64_t r) const;

  // Rebuilt from a capture: `before` and `have` point into `storage`.
  OpRecord(SiteId site, const Kernel& kernel, AnyArgs before, AnyArgs have, std::vector<int32_t> step_rows,
           Storage storage);

 private:
  SiteId site_ = -1;
  const Kernel* kernel_ = nullptr;
  int64_t first_ = 0, count_ = 0;
  std::vector<int32_t> step_rows_{};
  Storage storage_{};
  AnyArgs before_{}, have_{};
};

}  // namespace plumb
