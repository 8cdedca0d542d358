// Brings many blocks of mapped file to a device: all workers copy them into page-locked buffers while the device takes
// the buffer before.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/result.h"
#include "device/memory.h"

namespace plumb {

class ThreadPool;

class Upload {
 public:
  static Result<Upload> make(const Memory& memory, Stream& stream, ThreadPool& pool);
  // `from` must stay as it is until finish() has returned.
  void copy(std::byte* to, const void* from, int64_t bytes);
  void finish();

  static constexpr int64_t kBuffer = int64_t{64} << 20;
  static constexpr int kBuffers = 2;

 private:
  struct Piece {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    int64_t bytes = 0;
  };
  Upload(const Memory& memory, Stream& stream, ThreadPool& pool) : memory_(memory), stream_(stream), pool_(pool) {}
  void flush();

  const Memory& memory_;
  Stream& stream_;
  ThreadPool& pool_;
  std::array<std::shared_ptr<std::byte>, kBuffers> buffers_{};
  size_t current_ = 0;
  std::vector<Piece> pieces_{};  // of the current buffer, side by side
  int64_t used_ = 0;
};

// Asks the system to map a range of a file before it is read: cheaper than a fault a page. Old kernels refuse; nothing
// is lost.
void populate(const void* data, int64_t bytes);

}  // namespace plumb
