// Where weights, pages and activations of a backend lie, and how they get there.
#pragma once

#include <cstddef>
#include <memory>

#include "base/result.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace plumb {

struct Memory {
  Where where = Where::Host;
  // 256-byte aligned or better, zeroed. `purpose` is for the error (Environment), which says what was asked for.
  Result<std::shared_ptr<std::byte>> (*allocate)(size_t bytes, const char* purpose) = nullptr;
  // From host memory, in the stream's order. `from` may change once synchronise() has returned.
  void (*upload)(void* to, const void* from, size_t bytes, Stream& stream) = nullptr;
  // To host memory; complete on return.
  void (*download)(void* to, const void* from, size_t bytes, Stream& stream) = nullptr;
  void (*synchronise)(Stream& stream) = nullptr;
};

Memory host_memory();

}  // namespace plumb
