// The witness: an op run once more on the same inputs, by the reference or by any other kernel that its place accepts.
// So errors do not pile up, and the first op out of bound is the one at fault.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "guard/op_judge.h"
#include "guard/op_record.h"
#include "ops/plan.h"

namespace plumb {

class ThreadPool;

// A device that kernels can be run on again.
struct WitnessDevice {
  Memory memory{};
  Stream stream{};  // of the thread that judges; its workspace is not used
  // What was computed there is held against the plain kernel of the device instead of the reference: far faster for
  // large weights, but of the device's own copy of them.
  bool plain_kernels = false;
  std::shared_ptr<void> owner{};  // of the stream, if it is no executor's
};
// Where `executor` runs, if that is no CPU.
std::optional<WitnessDevice> witness_device(Executor& executor);
// The same for another thread beside it, with the plain kernels as yardstick.
std::optional<WitnessDevice> witness_device_beside(Executor& executor);

class Witness {
 public:
  // `pool` may be null: everything runs on the calling thread. All three must outlive the witness. Without a device
  // only kernels of this machine's CPU can be tried.
  Witness(const Plan& plan, const Registry& registry, ThreadPool* pool, std::optional<WitnessDevice> device = {})
      : plan_(plan), registry_(registry), pool_(pool), device_(std::move(device)) {}

  // What the record's kernel gave against the reference, within its own contract.
  Judgement judge(const OpRecord& record) const;
  // What `kernel` gives on the record's inputs against the reference, within its own contract. An Error: its layout
  // can't be made of the weights, or its device isn't here.
  Result<Judgement> judge(const OpRecord& record, const Kernel& kernel) const;
  // Kernels that the record's place accepts for its rows, the planned and the reference ones included.
  std::vector<const Kernel*> accepted(const OpRecord& record) const;
  const Kernel& reference(SiteId site) const;

 private:
  // `args` with what the kernel wrote; `storage` holds it where that had to lie elsewhere.
  Result<AnyArgs> launch(const Kernel& kernel, SiteId site, AnyArgs args, Storage& storage) const;
  AnyArgs launch_on_device(const Kernel& kernel, const Call& call, const AnyArgs& args, Storage& storage) const;
  std::byte* room(size_t bytes) const;
  AnyArgs truth(const OpRecord& record, Storage& storage) const;
  const Kernel& yardstick(const OpRecord& record) const;
  const Choice& choice(SiteId site, int64_t rows) const;

  const Plan& plan_;
  const Registry& registry_;
  ThreadPool* pool_;
  const std::optional<WitnessDevice> device_;
  mutable std::shared_ptr<std::byte> room_{};  // of launches on the device, which one thread makes
  mutable size_t room_bytes_ = 0;
};

}  // namespace plumb
