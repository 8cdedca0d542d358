// Sampling for CUDA backends by the portable CPU kernel: the logits rows come home first. Right, and slow for large
// vocabularies; a kernel on the device takes its place by its preference.
#include <cuda_runtime.h>

#include <vector>

#include "base/check.h"
#include "kernels/cuda/contracts/contracts.h"
#include "kernels/cuda/cuda_kernels.h"

namespace plumb::cuda {
namespace {

void sample(const SampleArgs& args, Stream& stream) {
  const auto rows = static_cast<size_t>(args.logits.dim(0));
  const auto columns = static_cast<size_t>(args.logits.dim(1));
  std::vector<float> home(rows * columns);
  const cudaError_t status =
      cudaMemcpy2DAsync(home.data(), columns * 4, args.logits.data, static_cast<size_t>(args.logits.ld) * 4,
                        columns * 4, rows, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream.handle));
  PLUMB_CHECK(status == cudaSuccess && cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle)) == cudaSuccess,
              "the device was lost before sampling");
  SampleArgs on_host = args;
  on_host.logits = Tensor(home.data(), DType::F32, {args.logits.dim(0), args.logits.dim(1)});
  std::vector<std::byte> workspace(stream.workspace_bytes + 64);
  Stream host{.workspace = workspace.data(), .workspace_bytes = workspace.size()};
  portable_sampler().launch(&on_host, host);
}

}  // namespace

Kernel sample_on_host() { return make_kernel<SampleArgs, sample>(host_sampler_contract()); }

}  // namespace plumb::cuda
