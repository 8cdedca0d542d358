#include "case_memory.h"

#include <new>

#ifdef PLUMB_HAVE_CUDA
#include <cuda_runtime.h>

#include <bit>
#include <map>

#include "base/check.h"
#include "device/cuda_device.h"
#endif

namespace plumb::testing {
namespace {

constexpr std::align_val_t kAlign{64};

#ifdef PLUMB_HAVE_CUDA
bool has_gpu() {
  static const bool kFound = static_cast<bool>(find_cuda(0));
  return kFound;
}

// Locking pages takes far longer than a case runs, so blocks are used again. Never destroyed: cases may outlive it.
std::multimap<size_t, void*>& free_blocks() {
  static auto& blocks = *new std::multimap<size_t, void*>();
  return blocks;
}
size_t block_size(size_t bytes) { return std::bit_ceil(bytes < 64 ? size_t{64} : bytes); }
#endif

}  // namespace

void* allocate_case_memory(size_t bytes) {
#ifdef PLUMB_HAVE_CUDA
  if (has_gpu()) {
    const size_t size = block_size(bytes);
    if (const auto found = free_blocks().find(size); found != free_blocks().end()) {
      void* block = found->second;
      free_blocks().erase(found);
      return block;
    }
    void* block = nullptr;
    PLUMB_CHECK(cudaHostAlloc(&block, size, cudaHostAllocDefault) == cudaSuccess, "no page-locked memory");
    return block;
  }
#endif
  return ::operator new(bytes, kAlign);
}

void free_case_memory(void* memory, [[maybe_unused]] size_t bytes) {
#ifdef PLUMB_HAVE_CUDA
  if (has_gpu()) {
    free_blocks().emplace(block_size(bytes), memory);
    return;
  }
#endif
  ::operator delete(memory, kAlign);
}

const DeviceInfo& this_machine() {
  static const DeviceInfo kDevice = [] {
    DeviceInfo device = detect_cpu();
#ifdef PLUMB_HAVE_CUDA
    if (const Result<CudaInfo> cuda = find_cuda(0)) {
      const std::vector<Isa>& more = cuda->device.isas;
      device.isas.insert(device.isas.end(), more.begin(), more.end());
    }
#endif
    return device;
  }();
  return kDevice;
}

std::shared_ptr<void> new_case_stream() {
#ifdef PLUMB_HAVE_CUDA
  cudaStream_t stream = nullptr;
  PLUMB_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "no stream");
  return {static_cast<void*>(stream), [](void* s) { cudaStreamDestroy(static_cast<cudaStream_t>(s)); }};
#else
  return nullptr;
#endif
}

void wait_for_device() {
#ifdef PLUMB_HAVE_CUDA
  if (!has_gpu()) return;
  const cudaError_t launched = cudaGetLastError();
  const cudaError_t ran = cudaDeviceSynchronize();
  PLUMB_CHECK(launched == cudaSuccess, cudaGetErrorString(launched));
  PLUMB_CHECK(ran == cudaSuccess, cudaGetErrorString(ran));
#endif
}

}  // namespace plumb::testing
