// Where kernels run: the CPU's worker threads or a CUDA stream, with the scratch memory a launch may use.
#pragma once

#include <cstddef>

namespace plumb {

class ThreadPool;

struct Stream {
  ThreadPool* pool = nullptr;      // CPU kernels: static split over its workers
  std::byte* workspace = nullptr;  // 64-byte aligned; at least what the kernel's contract asked for
  size_t workspace_bytes = 0;
  void* handle = nullptr;  // cudaStream_t
};

}  // namespace plumb
