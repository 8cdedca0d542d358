// The CUDA device in builds without CUDA.
#ifndef PLUMB_HAVE_CUDA
#include "device/cuda_device.h"

namespace plumb {
namespace {

Error absent() {
  return {Code::Unsupported,
          "this build of plumb has no CUDA backend",
          "it was compiled without nvcc",
          {"--backend cpu", "a build made where nvcc is in PATH"}};
}

}  // namespace

std::string cuda_architectures() { return ""; }
void require_cuda(int, const char*) {}
Result<CudaPlace> cuda_place(int) { return absent(); }
std::string cuda_unreachable(int, const std::vector<std::string>&) { return absent().what; }
Result<CudaInfo> find_cuda(int) { return absent(); }
Result<CudaStream> CudaStream::open(int) { return absent(); }
Memory CudaStream::memory() const { return host_memory(); }

}  // namespace plumb
#endif
