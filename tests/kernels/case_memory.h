// Memory that kernels of every device of this machine can reach: page-locked where a CUDA device is, so that its
// kernels run on the very buffers the CPU's run on, fences included.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "device/isa.h"
#include "device/stream.h"

namespace plumb::testing {

// 64-byte aligned or better. By the test's own thread, and while nothing runs on a device that waits for another one.
void* allocate_case_memory(size_t bytes);
void free_case_memory(void* memory, size_t bytes);

// All that kernels of this machine may be built for: the CPU's instruction sets and, where there is one, the GPU's.
const DeviceInfo& this_machine();
// A stream beside the one that cases use, which neither waits for the other: cudaStream_t. Null where there is no GPU.
std::shared_ptr<void> new_case_stream();
// Returns once what was launched has run. A failed launch ends the test program, naming the error.
void wait_for_device();

template <class T>
struct CaseAllocator {
  using value_type = T;
  CaseAllocator() = default;
  template <class U>
  CaseAllocator(const CaseAllocator<U>&) {}  // NOLINT(google-explicit-constructor): allocators convert
  T* allocate(size_t count) { return static_cast<T*>(allocate_case_memory(count * sizeof(T))); }
  void deallocate(T* memory, size_t count) { free_case_memory(memory, count * sizeof(T)); }
  friend bool operator==(const CaseAllocator&, const CaseAllocator&) { return true; }
};
// An array that kernels read.
template <class T>
using CaseVector = std::vector<T, CaseAllocator<T>>;

}  // namespace plumb::testing
