#include "model/upload.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"

namespace plumb {

Result<Upload> Upload::make(const Memory& memory, Stream& stream, ThreadPool& pool) {
  Upload upload(memory, stream, pool);
  for (auto& buffer : upload.buffers_) {
    PLUMB_TRY(buffer, memory.allocate_staging(static_cast<size_t>(kBuffer), "weights on their way to the device"));
  }
  return upload;
}

void Upload::copy(std::byte* to, const void* from, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    if (used_ == kBuffer) flush();
    const int64_t now = std::min(bytes - done, kBuffer - used_);
    pieces_.push_back({.to = to + done, .from = static_cast<const std::byte*>(from) + done, .bytes = now});
    used_ += now;
    done += now;
  }
}

void Upload::flush() {
  if (pieces_.empty()) return;
  std::byte* const buffer = buffers_[current_].get();
  pool_.parallel([&](int worker, int workers) {
    const Range mine = split(used_, worker, workers);
    int64_t at = 0;
    for (const Piece& piece : pieces_) {
      const int64_t begin = std::max(mine.begin, at), end = std::min(mine.end, at + piece.bytes);
      if (begin < end) {
        populate(piece.from + (begin - at), end - begin);
        std::memcpy(buffer + begin, piece.from + (begin - at), static_cast<size_t>(end - begin));
      }
      at += piece.bytes;
    }
  });
  memory_.synchronise(stream_);  // the other buffer has gone: it may be filled while this one goes
  int64_t at = 0;
  for (size_t i = 0; i < pieces_.size();) {
    size_t next = i;
    int64_t bytes = 0;
    do bytes += pieces_[next++].bytes;
    while (next < pieces_.size() && pieces_[next].to == pieces_[i].to + bytes);
    memory_.upload(pieces_[i].to, buffer + at, static_cast<size_t>(bytes), stream_);
    at += bytes;
    i = next;
  }
  pieces_.clear();
  used_ = 0;
  current_ = (current_ + 1) % kBuffers;
}

void Upload::finish() {
  flush();
  memory_.synchronise(stream_);
}

void populate(const void* data, int64_t bytes) {
#ifdef MADV_POPULATE_READ
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes);
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);
#else
  (void)data;
  (void)bytes;
#endif
}

}  // namespace plumb
