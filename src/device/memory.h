// Where weights, pages and activations of a backend lie, and how they get there.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/result.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace plumb {

struct Memory {
  Where where = Where::Host;
  // 256-byte aligned or better, zeroed. `purpose` is for the error (Environment), which says what was asked for.
  Result<std::shared_ptr<std::byte>> (*allocate)(size_t bytes, const char* purpose) = nullptr;
  // Host memory that copies run from and to without another copy in between (page-locked for a device).
  Result<std::shared_ptr<std::byte>> (*allocate_staging)(size_t bytes, const char* purpose) = nullptr;
  // From host memory, in the stream's order. `from` may change once synchronise() has returned.
  void (*upload)(void* to, const void* from, size_t bytes, Stream& stream) = nullptr;
  // To host memory; complete on return.
  void (*download)(void* to, const void* from, size_t bytes, Stream& stream) = nullptr;
  // Zeroes, in the stream's order.
  void (*clear)(void* to, size_t bytes, Stream& stream) = nullptr;
  void (*synchronise)(Stream& stream) = nullptr;
  // Keeps what `launches` puts into the stream instead of running it; replay() runs it, with the same pointers and
  // sizes, for far less of the host's time. Null where there is no such thing.
  std::shared_ptr<void> (*record)(const std::function<void()>& launches, Stream& stream) = nullptr;
  void (*replay)(void* recording, Stream& stream) = nullptr;
};

Memory host_memory();

}  // namespace plumb
