// Sums and gathers among ranks for CUDA backends, by way of the host: a copy home, the exchange by whatever joins the
// ranks, a copy back, all in the stream's order and part of recorded steps. It needs nothing between the devices: ranks
// that have no direct way to each other, or one device together, run by it, and what a faster kernel sums can be
// compared with it.
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <span>

#include "base/check.h"
#include "comm/collectives.h"
#include "device/cuda_device.h"
#include "kernels/cuda/contracts/contracts.h"
#include "kernels/cuda/ranks/rank_kernels.h"
#include "tensor/encode.h"

namespace plumb::cuda {
namespace {

cudaStream_t handle(Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }
void must(cudaError_t status) { require_cuda(status, "a collective"); }

// `work` runs on a thread of the driver's when the stream gets there; recorded, every time the step runs.
template <class Work>
void launch_on_host(Communicator& comm, Stream& stream, const Work& work) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  must(cudaStreamIsCapturing(handle(stream), &capturing));
  if (capturing == cudaStreamCaptureStatusNone) {
    const auto once = [](void* data) { (*std::unique_ptr<Work>(static_cast<Work*>(data)))(); };
    must(cudaLaunchHostFunc(handle(stream), once, new Work(work)));
    return;
  }
  auto kept = std::make_shared<Work>(work);
  must(cudaLaunchHostFunc(
      handle(stream), [](void* data) { (*static_cast<Work*>(data))(); }, kept.get()));
  comm.keep(std::move(kept));
}

float* staging(const Communicator& comm, int64_t values) {
  const Communicator::In memory = comm.staging();
  PLUMB_CHECK(static_cast<size_t>(values) * sizeof(float) <= memory.size(), "staging memory of a collective");
  return reinterpret_cast<float*>(memory.data());
}

void copy(const Tensor& device, float* host, int64_t host_ld, bool home, Stream& stream) {
  const auto row = static_cast<size_t>(device.dim(1)) * sizeof(float);
  const auto device_pitch = static_cast<size_t>(device.ld) * sizeof(float),
             host_pitch = static_cast<size_t>(host_ld) * sizeof(float);
  const auto rows = static_cast<size_t>(device.dim(0));
  must(home ? cudaMemcpy2DAsync(host, host_pitch, device.data, device_pitch, row, rows, cudaMemcpyDeviceToHost,
                                handle(stream))
            : cudaMemcpy2DAsync(device.data, device_pitch, host, host_pitch, row, rows, cudaMemcpyHostToDevice,
                                handle(stream)));
}

void all_reduce_rows(const AllReduceArgs& args, Stream& stream) {
  Communicator& comm = *args.comm;
  const std::span<float> values(staging(comm, args.x.elements()), static_cast<size_t>(args.x.elements()));
  copy(args.x, values.data(), args.x.dim(1), true, stream);
  launch_on_host(comm, stream, [&comm, values, round = args.numerics.round_bf16] {
    // The communicator keeps a failure, and whoever runs the step asks it.
    if (all_reduce(comm, values) && round) std::transform(values.begin(), values.end(), values.begin(), round_bf16);
  });
  copy(args.x, values.data(), args.x.dim(1), false, stream);
}

void gather_shares(const GatherColumnsArgs& args, Stream& stream) {
  Communicator& comm = *args.comm;
  const int64_t rows = args.x.dim(0), n = args.y.dim(1);
  const bool leads = comm.rank() == 0;
  float* const home = staging(comm, leads ? rows * n : args.x.elements());
  copy(args.x, home, leads ? n : args.x.dim(1), true, stream);
  const std::span<float> values(home, static_cast<size_t>(leads ? rows * n : args.x.elements()));
  launch_on_host(comm, stream, [&comm, values, rows, n, share = args.share] {
    static_cast<void>(gather_columns(comm, values, rows, n, n, share));
  });
  if (leads) copy(args.y, home, n, false, stream);
}

}  // namespace

void add_host_collectives(std::vector<Kernel>& out) {
  out.push_back(make_kernel<AllReduceArgs, all_reduce_rows>(host_collective_contract(Op::AllReduce)));
  out.push_back(make_kernel<GatherColumnsArgs, gather_shares>(host_collective_contract(Op::GatherColumns)));
}

}  // namespace plumb::cuda
