// Executor: runs ops by the plan. The only place through which the model touches a device, hence the only place to
// watch it from: taps, sentinels, timing and planted faults are added in `run`.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "device/memory.h"
#include "ops/plan.h"

namespace plumb {

class Executor {
 public:
  // `output`: the op's result, as `name` ("layers.3.kv_latent"; names as in the goldens). Called only while a tap is
  // set.
  using Tap = std::function<void(std::string_view name, const Tensor& output)>;

  // `memory` is where the ops' tensors lie; taps always see host memory.
  Executor(const Plan& plan, Stream stream, Memory memory = host_memory())
      : plan_(plan), stream_(stream), memory_(memory) {}

  template <class Args>
  void run(SiteId site, int64_t rows, const Args& args) {
    if (rows > 0) launch(site, rows, &args);
  }

  bool tapped() const { return static_cast<bool>(tap_); }
  void set_tap(Tap tap) { tap_ = std::move(tap); }
  // Hands an intermediate to the tap, if there is one.
  void tap(int layer, std::string_view name, const Tensor& value);

  const Plan& plan() const { return plan_; }
  Stream& stream() { return stream_; }
  const Memory& memory() const { return memory_; }
  // The same tensor in host memory, without gaps; `storage` holds it when it had to be copied.
  Tensor to_host(const Tensor& value, std::vector<std::byte>& storage);
  // Nanoseconds spent inside kernels since the start, and launches.
  uint64_t kernel_ns() const { return kernel_ns_; }

 private:
  void launch(SiteId site, int64_t rows, const void* args);

  const Plan& plan_;
  Stream stream_;
  Memory memory_;
  Tap tap_{};
  uint64_t kernel_ns_ = 0;
};

}  // namespace plumb
