// Executor: runs ops by the plan. The only place through which the model touches a device, hence the only place to
// watch it from: taps and observers (sentinels, recorders, planted faults) are called here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "device/memory.h"
#include "ops/plan.h"

namespace plumb {

class Executor;

// Which row of the step an op's row r is: map[r], or first + r.
struct RowOrigin {
  int32_t first = 0;
  const int32_t* map = nullptr;  // host memory
  int32_t row(int64_t r) const { return map != nullptr ? map[r] : first + static_cast<int32_t>(r); }
};

// One launch, as observers see it.
struct OpCall {
  SiteId site = -1;
  int64_t rows = 0;
  const Kernel& kernel;
  const void* args = nullptr;  // the op's struct of ops/args.h
  RowOrigin origin{};
};

// What an observer does in a pass.
enum class Watching : uint8_t {
  Nothing,
  InStream,  // puts work of its own into the stream, always the same for the same launches: a recording holds it
  Launches,  // wants to be there at each launch: none may be replayed from a recording
};

// Watches what an executor runs, on the thread that runs it. Guard, recorders and planted faults are observers.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual Watching watching() const { return Watching::Launches; }
  // A pass of the model begins; `rows` (host memory) is what its ops' row origins count in.
  virtual void begin_pass(const Paging& rows) { static_cast<void>(rows); }
  virtual void before(const OpCall& call, Executor& executor) = 0;  // inputs are whole
  virtual void after(const OpCall& call, Executor& executor) = 0;   // outputs are written
  // The last launch of the pass is done. With a recording, called while it is made.
  virtual void end_pass(Executor& executor) { static_cast<void>(executor); }
};

class Executor {
 public:
  // `output`: the op's result, as `name` ("layers.3.kv_latent"; names as in the goldens). Called only while a tap is
  // set.
  using Tap = std::function<void(std::string_view name, const Tensor& output)>;

  // `memory` is where the ops' tensors lie; taps always see host memory.
  Executor(const Plan& plan, Stream stream, Memory memory = host_memory())
      : plan_(plan), stream_(stream), memory_(memory) {}

  template <class Args>
  void run(SiteId site, int64_t rows, const Args& args, const RowOrigin& origin = {}) {
    if (rows > 0 && !halted()) launch(site, rows, &args, origin);
  }

  // Observers are called in their order; they must outlive the executor or be removed. The first may change what an op
  // wrote before the others see it. Neither is called while a step runs.
  void add_observer(OpObserver& observer) { observers_.push_back(&observer); }
  void add_observer_first(OpObserver& observer) { observers_.insert(observers_.begin(), &observer); }
  void remove_observer(const OpObserver& observer) { std::erase(observers_, &observer); }
  void begin_pass(const Paging& rows);

  // The last launch of a pass is done.
  void end_pass() {
    for (OpObserver* observer : observers_) observer->end_pass(*this);
  }

  // Somebody wants to see every launch: none may be replayed from a recording.
  bool watched() const { return plan_.planted || tapped() || observers(Watching::Launches) > 0; }
  int observers(Watching watching) const {
    return static_cast<int>(std::count_if(observers_.begin(), observers_.end(),
                                          [&](const OpObserver* o) { return o->watching() == watching; }));
  }
  bool tapped() const { return static_cast<bool>(tap_); }
  void set_tap(Tap tap) { tap_ = std::move(tap); }
  // Hands an intermediate to the tap, if there is one.
  void tap(int layer, std::string_view name, const Tensor& value);

  // Once `flag` is set nothing is launched: what would be computed has lost its use. Null: no such flag.
  void set_halt(const std::atomic<bool>* flag) { halt_ = flag; }
  bool halted() const { return halt_ != nullptr && halt_->load(std::memory_order_relaxed); }

  const Plan& plan() const { return plan_; }
  Stream& stream() { return stream_; }
  const Memory& memory() const { return memory_; }
  // The same tensor in host memory, without gaps; `storage` holds it when it had to be copied.
  Tensor to_host(const Tensor& value, std::vector<std::byte>& storage);
  // Nanoseconds spent inside kernels since the start.
  uint64_t kernel_ns() const { return kernel_ns_; }

 private:
  void launch(SiteId site, int64_t rows, const void* args, const RowOrigin& origin);

  const Plan& plan_;
  Stream stream_;
  Memory memory_;
  Tap tap_{};
  std::vector<OpObserver*> observers_{};
  const std::atomic<bool>* halt_ = nullptr;
  uint64_t kernel_ns_ = 0;
};

}  // namespace plumb
