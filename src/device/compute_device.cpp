#include "device/compute_device.h"

#include "device/cuda_device.h"

namespace plumb {

Result<ComputeDevice> open_device(std::string_view backend, int cuda_ordinal, ThreadPool& pool) {
  ComputeDevice device{.memory = host_memory(), .stream = {.pool = &pool}};
  if (backend != "cuda") {
    device.info = detect_cpu();
    return device;
  }
  PLUMB_TRY(const CudaInfo found, find_cuda(cuda_ordinal));
  PLUMB_TRY(CudaStream opened, CudaStream::open(cuda_ordinal));
  device.info = found.device;
  device.memory = opened.memory();
  device.stream.handle = opened.handle();
  device.owner = std::make_shared<CudaStream>(std::move(opened));
  return device;
}

}  // namespace plumb
