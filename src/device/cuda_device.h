// A CUDA device: found, described, and opened. In builds without CUDA every function answers Unsupported.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/isa.h"
#include "device/memory.h"
#include "device/stream.h"

namespace plumb {

struct CudaInfo {
  DeviceInfo device{};
  int ordinal = 0;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int64_t free_bytes = 0;  // at the time of asking
  int64_t l2_bytes = 0;
  int64_t shared_per_block = 0;
};

// "sm_90a, sm_100a": what the kernels of this build were compiled for; empty without CUDA.
std::string cuda_architectures();
// The device for the n-th rank of a machine; with fewer devices, ranks share them. Makes no context.
struct CudaPlace {
  int ordinal = 0;
  std::string id{};  // of the card, whatever number this process sees it by
};
Result<CudaPlace> cuda_place(int rank_here);
// Why the device cannot read and write the memory of the cards with those ids; empty: it can.
std::string cuda_unreachable(int ordinal, const std::vector<std::string>& ids);
// Refuses a device this build has no code for, naming both.
Result<CudaInfo> find_cuda(int ordinal);

// After load a CUDA error means that the device or our code is lost: nothing computed since can be trusted. `status` is
// a cudaError_t; unless it is success, the process ends with the exit code of a lost device, naming `what`.
void require_cuda(int status, const char* what);

// One stream, on a device made current for the calling thread.
class CudaStream {
 public:
  static Result<CudaStream> open(int ordinal);
  void* handle() const { return owner_.get(); }  // cudaStream_t
  Memory memory() const;

 private:
  std::shared_ptr<void> owner_{};
};

}  // namespace plumb
