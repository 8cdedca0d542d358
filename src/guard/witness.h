// The witness: an op run once more on the same inputs, by the reference or by any other kernel that its place accepts.
// So errors do not pile up, and the first op out of bound is the one at fault.
#pragma once

#include <vector>

#include "base/result.h"
#include "guard/op_judge.h"
#include "guard/op_record.h"
#include "ops/plan.h"

namespace plumb {

class ThreadPool;

class Witness {
 public:
  // `pool` may be null: everything runs on the calling thread. All three must outlive the witness.
  Witness(const Plan& plan, const Registry& registry, ThreadPool* pool)
      : plan_(plan), registry_(registry), pool_(pool) {}

  // What the record's kernel gave against the reference, within its own contract.
  Judgement judge(const OpRecord& record) const;
  // What `kernel` gives on the record's inputs against the reference, within its own contract. An Error: its layout
  // can't be made of the weights, or its device isn't this machine's CPU.
  Result<Judgement> judge(const OpRecord& record, const Kernel& kernel) const;
  // Kernels that the record's place accepts for its rows, the planned and the reference ones included.
  std::vector<const Kernel*> accepted(const OpRecord& record) const;
  const Kernel& reference(SiteId site) const;

 private:
  Status launch(const Kernel& kernel, SiteId site, AnyArgs args) const;
  const Choice& choice(SiteId site, int64_t rows) const;

  const Plan& plan_;
  const Registry& registry_;
  ThreadPool* pool_;
};

}  // namespace plumb
