// Where weights, pages and activations of a backend lie, and how they get there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace plumb {

// A matrix whose rows Memory::scan looks at.
struct ScanPiece {
  const float* data = nullptr;  // [rows, columns]
  int64_t ld = 0;
  int32_t rows = 0, columns = 0;
  int32_t first_row = 0;  // which mark is that of row 0
  int32_t mark = 0;
  bool minus_infinity = false;  // is a value like others here
};

struct Memory {
  Where where = Where::Host;
  // 256-byte aligned or better, zeroed. `purpose` is for the error (Environment), which says what was asked for.
  Result<std::shared_ptr<std::byte>> (*allocate)(size_t bytes, const char* purpose) = nullptr;
  // Host memory that copies run from and to without another copy in between (page-locked for a device).
  Result<std::shared_ptr<std::byte>> (*allocate_staging)(size_t bytes, const char* purpose) = nullptr;
  // From host memory, in the stream's order. `from` may change once synchronise() has returned.
  void (*upload)(void* to, const void* from, size_t bytes, Stream& stream) = nullptr;
  // To host memory, from wherever it lies; complete on return.
  void (*download)(void* to, const void* from, size_t bytes, Stream& stream) = nullptr;
  // Zeroes, in the stream's order.
  void (*clear)(void* to, size_t bytes, Stream& stream) = nullptr;
  void (*synchronise)(Stream& stream) = nullptr;
  // Raises marks[stride * r] to the piece's mark where its row r has a value that is not finite, in the stream's order.
  // At most kScanPieces. Null on the host, where one can look.
  void (*scan)(std::span<const ScanPiece> pieces, int32_t* marks, int stride, Stream& stream) = nullptr;
  // Makes the stream's device that of the calling thread: every thread that uses a stream starts so. Null on the host.
  void (*enter)(const Stream& stream) = nullptr;
  // The handle of one more stream of the same device, of low priority. Null on the host.
  std::shared_ptr<void> (*new_stream)(const Stream& like) = nullptr;
  // Keeps what `launches` puts into the stream instead of running it; replay() runs it, with the same pointers and
  // sizes, for far less of the host's time. Null where there is no such thing.
  std::shared_ptr<void> (*record)(const std::function<void()>& launches, Stream& stream) = nullptr;
  void (*replay)(void* recording, Stream& stream) = nullptr;
};

inline constexpr size_t kScanPieces = 24;

Memory host_memory();

}  // namespace plumb
