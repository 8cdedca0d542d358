// What the benches of CUDA kernels share: device memory with random content, medians of event times of captured
// launches, and the ceiling of this card.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "ops/args.h"
#include "tensor/encode.h"

namespace plumb::bench {

inline constexpr int64_t kCold = int64_t{512} << 20;
inline constexpr int kRepeats = 30;

inline void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

inline std::byte* device_bytes(int64_t bytes) {
  void* p = nullptr;
  must(cudaMalloc(&p, static_cast<size_t>(bytes)), "cudaMalloc");
  return static_cast<std::byte*>(p);
}

enum class Fill { Bf16, Fp8, Fp4, ScaleF32, ScaleE8m0, ScaleE4m3, F32 };

static __global__ void fill_random(uint8_t* out, int64_t units, Fill fill, uint32_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < units;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    uint64_t x = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ull + seed;
    x ^= x >> 31, x *= 0xbf58476d1ce4e5b9ull, x ^= x >> 27;
    const auto r = static_cast<uint32_t>(x >> 16);
    const float value = (static_cast<float>(r & 0xffffu) - 32768.0f) * 0x1p-15f;
    if (fill == Fill::Bf16) reinterpret_cast<uint16_t*>(out)[i] = f32_to_bf16(value);
    if (fill == Fill::F32) reinterpret_cast<float*>(out)[i] = value;
    if (fill == Fill::Fp8) out[i] = f32_to_e4m3(value * 100.0f);
    if (fill == Fill::Fp4) out[i] = static_cast<uint8_t>(r);
    if (fill == Fill::ScaleF32) reinterpret_cast<float*>(out)[i] = 0.001f;
    if (fill == Fill::ScaleE8m0) out[i] = 117;
    if (fill == Fill::ScaleE4m3) out[i] = static_cast<uint8_t>(0x30 + r % 16);
  }
}

inline void fill(std::byte* to, int64_t units, Fill what) {
  if (units > 0) fill_random<<<1024, 256>>>(reinterpret_cast<uint8_t*>(to), units, what, 7);
}

inline int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// `count` equal matrices one after the other, as the loader lays them.
inline std::vector<Weight> make_weights(const Format& format, int64_t n, int64_t k, int64_t count) {
  const EncodedMatrix source{.format = format, .n = n, .k = k};
  const int64_t data = encoded_data_bytes(format, n, k), scale = encoded_scale_bytes(format, n, k);
  const int64_t each = aligned(data) + aligned(scale) + (format.global_scale ? 256 : 0);
  std::byte* base = device_bytes(each * count);
  std::vector<Weight> out;
  const float one = 1.0f;
  for (int64_t i = 0; i < count; ++i) {
    std::byte* at = base + i * each;
    const bool fp8 = format.element == DType::F8E4M3, fp4 = format.element == DType::F4E2M1;
    fill(at, fp8 || fp4 ? data : data / 2, fp8 ? Fill::Fp8 : fp4 ? Fill::Fp4 : Fill::Bf16);
    const bool f32_scale = format.scale == ScaleType::F32;
    fill(at + aligned(data), f32_scale ? scale / 4 : scale,
         f32_scale                          ? Fill::ScaleF32
         : format.scale == ScaleType::UE8M0 ? Fill::ScaleE8m0
                                            : Fill::ScaleE4m3);
    if (format.global_scale)
      must(cudaMemcpy(at + aligned(data) + aligned(scale), &one, 4, cudaMemcpyHostToDevice), "copy");
    out.push_back({.source = source, .layout = Layout::CudaRowMajor, .prepared = at});
  }
  must(cudaDeviceSynchronize(), "fill");
  return out;
}
inline int64_t weight_bytes(const Format& format, int64_t n, int64_t k) {
  return encoded_data_bytes(format, n, k) + encoded_scale_bytes(format, n, k);
}

inline Tensor device_rows(int64_t rows, int64_t columns, DType type = DType::F32) {
  std::byte* data = device_bytes(rows * columns * 4);
  fill(data, rows * columns, type == DType::F32 ? Fill::F32 : Fill::Bf16);
  return Tensor(data, type, {rows, columns}, Where::Cuda);
}
template <class T>
T* device_copy(const std::vector<T>& values) {
  std::byte* data = device_bytes(static_cast<int64_t>(values.size() * sizeof(T)));
  must(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return reinterpret_cast<T*>(data);
}

struct Timer {
  cudaEvent_t begin{}, end{};
  cudaStream_t stream{};
  Timer() {
    cudaEventCreate(&begin), cudaEventCreate(&end);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  // Median microseconds of run(i), captured once each in a graph, so that the host's launches are not timed. Without
  // `captured` the host's part is: of ops that wait for the device.
  template <class Run>
  double median(int rotations, Run run, bool captured = true) {
    if (!captured) return median_of([&](int i) { run(i % rotations); });
    run(0);  // what is chosen or opened once is not captured
    must(cudaStreamSynchronize(stream), "first run");
    std::vector<cudaGraphExec_t> graphs(static_cast<size_t>(rotations));
    for (int i = 0; i < rotations; ++i) {
      cudaGraph_t graph{};
      must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
      run(i);
      must(cudaStreamEndCapture(stream, &graph), "end of capture");
      must(cudaGraphInstantiate(&graphs[static_cast<size_t>(i)], graph, 0), "graph");
      cudaGraphDestroy(graph);
    }
    const double us = median_of([&](int i) { cudaGraphLaunch(graphs[static_cast<size_t>(i % rotations)], stream); });
    for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
    return us;
  }
  template <class Launch>
  double median_of(Launch launch) {
    std::vector<double> times;
    for (int i = 0; i < kRepeats + 5; ++i) {
      cudaEventRecord(begin, stream);
      launch(i);
      cudaEventRecord(end, stream);
      must(cudaStreamSynchronize(stream), "run");
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      if (i >= 5) times.push_back(static_cast<double>(ms) * 1000);
    }
    std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
    return times[kRepeats / 2];
  }
};

struct Bench {
  Timer timer{};
  double ceiling = 0;  // bytes per microsecond
  std::byte* workspace = device_bytes(int64_t{1} << 30);
  std::vector<Kernel> kernels = cuda_kernels();

  Stream stream() { return {.workspace = workspace, .workspace_bytes = size_t{1} << 30, .handle = timer.stream}; }
  const Kernel* find(Op op, const Format& format, int64_t n, int64_t k, int64_t rows) {
    return find({.op = op, .weight = format, .m_lo = rows, .m_hi = rows, .n = n, .k = k, .topk = 8});
  }
  // The accepted kernel of the highest preference, as in a plan.
  const Kernel* find(const Call& call) const {
    const DeviceInfo device{.name = "gpu", .isas = {Isa::CudaPortable, Isa::Sm90a}};
    const Kernel* best = nullptr;
    const auto preference = [&](const Contract& c) { return c.preferred_from <= call.m_lo ? c.preference : 0; };
    for (const Kernel& kernel : kernels) {
      if (kernel.contract.op == call.op && judge(kernel.contract, call, device).empty() &&
          (best == nullptr || preference(kernel.contract) > preference(best->contract)))
        best = &kernel;
    }
    return best;
  }
  // That one, and every other of its name.
  std::vector<const Kernel*> candidates(const Kernel* best, const std::string& part, const Call& call) const {
    const DeviceInfo device{.name = "gpu", .isas = {Isa::CudaPortable, Isa::Sm90a}};
    std::vector<const Kernel*> out = {best};
    for (const Kernel& kernel : kernels)
      if (&kernel != best && kernel.contract.op == call.op && kernel.contract.name.find(part) != std::string::npos &&
          judge(kernel.contract, call, device).empty())
        out.push_back(&kernel);
    return out;
  }
  void print(const std::string& what, const std::string& kernel, int64_t rows, double us, int64_t bytes) const {
    std::printf("%-34s %-24s %5lld %9.1f us %7.0f GB/s %5.1f %%\n", what.c_str(), kernel.c_str(),
                static_cast<long long>(rows), us, static_cast<double>(bytes) / us / 1000,
                100 * static_cast<double>(bytes) / us / ceiling);
    std::fflush(stdout);
  }
};

static __global__ void copy_all(const uint4* from, uint4* to, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    __stcs(to + i, __ldcs(from + i));
}

inline void measure_ceiling(Bench& bench) {
  const int64_t bytes = int64_t{2} << 30;
  std::byte* a = device_bytes(bytes);
  std::byte* b = device_bytes(bytes);
  const double us = bench.timer.median(1, [&](int) {
    copy_all<<<132 * 8, 512, 0, bench.timer.stream>>>(reinterpret_cast<const uint4*>(a), reinterpret_cast<uint4*>(b),
                                                      bytes / 16);
  });
  bench.ceiling = 2.0 * static_cast<double>(bytes) / us;
  std::printf("copy ceiling %.0f GB/s (read + write)\n", bench.ceiling / 1000);
  cudaFree(a), cudaFree(b);
}

// Attention, indexer, selection, router and sampling: step_bench.cu.
void bench_step_ops(Bench& bench);
void bench_attention(Bench& bench);
void bench_one_attention(Bench& bench);  // for a profiler

}  // namespace plumb::bench
