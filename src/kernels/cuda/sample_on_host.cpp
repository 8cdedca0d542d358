// Sampling for CUDA backends by the portable CPU kernel: the logits rows come home first. Right, and slow for large
// vocabularies; a kernel on the device takes its place by its preference.
#include <cuda_runtime.h>

#include <vector>

#include "base/check.h"
#include "kernels/cpu/op_kernels.h"
#include "kernels/cuda/cuda_kernels.h"

namespace plumb::cuda {
namespace {

Kernel portable_sampler() {
  for (Kernel& kernel : cpu_op_kernels())
    if (kernel.contract.op == Op::Sample && kernel.contract.arch == Isa::Generic) return kernel;
  PLUMB_CHECK(false, "the CPU backend has no portable sampler");
}

void sample(const SampleArgs& args, Stream& stream) {
  static const Kernel kernel = portable_sampler();
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
  kernel.launch(&on_host, host);
}

size_t workspace_bytes(const Call& call) {
  static const Kernel kernel = portable_sampler();
  return kernel.contract.workspace != nullptr ? kernel.contract.workspace(call) : 0;
}

}  // namespace

Kernel sample_on_host() {
  Contract contract = portable_sampler().contract;
  contract.name = "sample.host.cuda";
  contract.arch = Isa::CudaPortable;
  contract.workspace = workspace_bytes;
  return make_kernel<SampleArgs, sample>(std::move(contract));
}

}  // namespace plumb::cuda
