// plumb_cuda_bench: kernels of the CUDA backend on GLM-5 shapes, as medians of event times, against what this card
// gives at best. Weights are random bytes of the format and cold: distinct copies of at least 512 MB in turn.
// cuBLASLt's bf16 product, chosen by its heuristic, is the control.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "ops/args.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

constexpr int64_t kCold = int64_t{512} << 20;
constexpr int kRepeats = 30;

void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

std::byte* device_bytes(int64_t bytes) {
  void* p = nullptr;
  must(cudaMalloc(&p, static_cast<size_t>(bytes)), "cudaMalloc");
  return static_cast<std::byte*>(p);
}

enum class Fill { Bf16, Fp8, Fp4, ScaleF32, ScaleE8m0, ScaleE4m3, F32 };

__global__ void fill_random(uint8_t* out, int64_t units, Fill fill, uint32_t seed) {
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

void fill(std::byte* to, int64_t units, Fill what) {
  if (units > 0) fill_random<<<1024, 256>>>(reinterpret_cast<uint8_t*>(to), units, what, 7);
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// `count` equal matrices one after the other, as the loader lays them.
std::vector<Weight> make_weights(const Format& format, int64_t n, int64_t k, int64_t count) {
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
int64_t weight_bytes(const Format& format, int64_t n, int64_t k) {
  return encoded_data_bytes(format, n, k) + encoded_scale_bytes(format, n, k);
}

struct Timer {
  cudaEvent_t begin{}, end{};
  cudaStream_t stream{};
  Timer() {
    cudaEventCreate(&begin), cudaEventCreate(&end);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  // Median microseconds of run(i), captured once each in a graph, so that the host's launches are not timed.
  template <class Run>
  double median(int rotations, Run run) {
    std::vector<cudaGraphExec_t> graphs(static_cast<size_t>(rotations));
    for (int i = 0; i < rotations; ++i) {
      cudaGraph_t graph{};
      must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
      run(i);
      must(cudaStreamEndCapture(stream, &graph), "end of capture");
      must(cudaGraphInstantiate(&graphs[static_cast<size_t>(i)], graph, 0), "graph");
      cudaGraphDestroy(graph);
    }
    std::vector<double> times;
    for (int i = 0; i < kRepeats + 5; ++i) {
      cudaEventRecord(begin, stream);
      cudaGraphLaunch(graphs[static_cast<size_t>(i % rotations)], stream);
      cudaEventRecord(end, stream);
      must(cudaStreamSynchronize(stream), "run");
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      if (i >= 5) times.push_back(static_cast<double>(ms) * 1000);
    }
    for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
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
  const Kernel* find(Op op, const Format& format, int64_t n, int64_t k) {
    const DeviceInfo device{.name = "gpu", .isas = {Isa::CudaPortable, Isa::Sm90a}};
    const Kernel* best = nullptr;
    for (const Kernel& kernel : kernels) {
      const Call call{.op = op, .weight = format, .n = n, .k = k, .topk = 8};
      if (kernel.contract.op == op && judge(kernel.contract, call, device).empty() &&
          (best == nullptr || kernel.contract.preference > best->contract.preference))
        best = &kernel;
    }
    return best;
  }
  void print(const std::string& what, const std::string& kernel, int64_t rows, double us, int64_t bytes) const {
    std::printf("%-34s %-24s %5lld %9.1f us %7.0f GB/s %5.1f %%\n", what.c_str(), kernel.c_str(),
                static_cast<long long>(rows), us, static_cast<double>(bytes) / us / 1000,
                100 * static_cast<double>(bytes) / us / ceiling);
    std::fflush(stdout);
  }
};

__global__ void copy_all(const uint4* from, uint4* to, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    __stcs(to + i, __ldcs(from + i));
}

void measure_ceiling(Bench& bench) {
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

struct Shape {
  const char* name;
  int64_t k, n;
};

Tensor device_rows(int64_t rows, int64_t columns, DType type = DType::F32) {
  std::byte* data = device_bytes(rows * columns * 4);
  fill(data, rows * columns, type == DType::F32 ? Fill::F32 : Fill::Bf16);
  return Tensor(data, type, {rows, columns}, Where::Cuda);
}

void bench_linear(Bench& bench, const Shape& shape, const Format& format, const std::vector<int64_t>& rows_list) {
  const int64_t bytes = weight_bytes(format, shape.n, shape.k);
  const auto copies = static_cast<int>(std::clamp<int64_t>(kCold / bytes + 1, 2, 64));
  const std::vector<Weight> weights = make_weights(format, shape.n, shape.k, copies);
  const Kernel* kernel = bench.find(Op::Linear, format, shape.n, shape.k);
  for (const int64_t rows : rows_list) {
    const Tensor x = device_rows(rows, shape.k), y = device_rows(rows, shape.n);
    const double us = bench.timer.median(copies, [&](int i) {
      Stream stream = bench.stream();
      const LinearArgs args{.w = &weights[static_cast<size_t>(i)], .x = x, .y = y};
      kernel->launch(&args, stream);
    });
    bench.print(std::string(shape.name) + " " + format.to_string(), kernel->contract.name, rows, us,
                bytes + 4 * rows * (shape.n + shape.k));
    cudaFree(x.data), cudaFree(y.data);
  }
  cudaFree(const_cast<std::byte*>(weights[0].prepared));
}

// y[rows, n] = x . w^T in bf16, by cuBLASLt's first choice.
void bench_cublas(Bench& bench, const Shape& shape, int64_t rows) {
  const int64_t bytes = 2 * shape.n * shape.k;
  const auto copies = static_cast<int>(std::clamp<int64_t>(kCold / bytes + 1, 2, 64));
  const std::vector<Weight> weights = make_weights(kBf16, shape.n, shape.k, copies);
  const Tensor x = device_rows(rows, shape.k, DType::BF16), y = device_rows(rows, shape.n, DType::BF16);
  cublasLtHandle_t lt{};
  cublasLtMatmulDesc_t op{};
  cublasLtMatrixLayout_t la{}, lb{}, lc{};
  cublasLtMatmulPreference_t preference{};
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const size_t workspace = size_t{64} << 20;
  cublasLtCreate(&lt);
  cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, static_cast<uint64_t>(shape.k), static_cast<uint64_t>(shape.n), shape.k);
  cublasLtMatrixLayoutCreate(&lb, CUDA_R_16BF, static_cast<uint64_t>(shape.k), static_cast<uint64_t>(rows), shape.k);
  cublasLtMatrixLayoutCreate(&lc, CUDA_R_16BF, static_cast<uint64_t>(shape.n), static_cast<uint64_t>(rows), shape.n);
  cublasLtMatmulPreferenceCreate(&preference);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                       sizeof workspace);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  cublasLtMatmulAlgoGetHeuristic(lt, op, la, lb, lc, lc, preference, 1, &found, &count);
  if (count > 0) {
    const float one = 1, zero = 0;
    const double us = bench.timer.median(copies, [&](int i) {
      cublasLtMatmul(lt, op, &one, weights[static_cast<size_t>(i)].prepared, la, x.data, lb, &zero, y.data, lc, y.data,
                     lc, &found.algo, bench.workspace, workspace, bench.timer.stream);
    });
    bench.print(std::string(shape.name) + " bf16", "cuBLASLt (control)", rows, us,
                bytes + 2 * rows * (shape.n + shape.k));
  }
  cublasLtDestroy(lt);
  cudaFree(const_cast<std::byte*>(weights[0].prepared)), cudaFree(x.data), cudaFree(y.data);
}

// Routed experts of one layer; every row its own eight of 256, by a fixed hash.
void bench_moe(Bench& bench, const char* name, int64_t inter, const Format& format,
               const std::vector<int64_t>& rows_list) {
  constexpr int64_t kHidden = 6144, kExperts = 256, kChosen = 8;
  const std::vector<Weight> gate = make_weights(format, inter, kHidden, kExperts);
  const std::vector<Weight> up = make_weights(format, inter, kHidden, kExperts);
  const std::vector<Weight> down = make_weights(format, kHidden, inter, kExperts);
  const int64_t each = 2 * weight_bytes(format, inter, kHidden) + weight_bytes(format, kHidden, inter);
  const Kernel* kernel = bench.find(Op::Moe, format, inter, kHidden);
  for (const int64_t rows : rows_list) {
    const Tensor x = device_rows(rows, kHidden), y = device_rows(rows, kHidden), weights = device_rows(rows, kChosen);
    constexpr int kRotations = 16;
    std::vector<Tensor> experts;
    double used = 0;
    for (int rotation = 0; rotation < kRotations; ++rotation) {
      std::vector<int32_t> ids;
      std::vector<bool> seen(kExperts);
      for (int64_t i = 0; i < rows * kChosen; ++i) {
        const int64_t start = (rotation * 131 + i / kChosen * 8 * 7 + 5) % kExperts;
        ids.push_back(static_cast<int32_t>((start + i % kChosen * 29) % kExperts));
        seen[static_cast<size_t>(ids.back())] = true;
      }
      used += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / kRotations;
      Tensor on_device(device_bytes(rows * kChosen * 4), DType::I32, {rows, kChosen}, Where::Cuda);
      must(cudaMemcpy(on_device.data, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice), "copy");
      experts.push_back(on_device);
    }
    const double us = bench.timer.median(kRotations, [&](int i) {
      Stream stream = bench.stream();
      const MoeArgs args{.gate = gate,
                         .up = up,
                         .down = down,
                         .x = x,
                         .experts = experts[static_cast<size_t>(i)],
                         .weights = weights,
                         .y = y};
      kernel->launch(&args, stream);
    });
    bench.print(std::string(name) + " " + format.to_string(), kernel->contract.name, rows, us,
                static_cast<int64_t>(used * static_cast<double>(each)));
    for (Tensor& t : experts) cudaFree(t.data);
    cudaFree(x.data), cudaFree(y.data), cudaFree(weights.data);
  }
  for (const auto* part : {&gate, &up, &down}) cudaFree(const_cast<std::byte*>((*part)[0].prepared));
}

}  // namespace
}  // namespace plumb

int main(int argc, char** argv) {
  using namespace plumb;
  const std::string what = argc > 1 ? argv[1] : "all";
  Bench bench;
  measure_ceiling(bench);
  std::printf("%-34s %-24s %5s %12s %12s %s\n", "shape", "kernel", "rows", "time", "bytes", "of the ceiling");
  const Shape shapes[] = {{"q_a+kv_a 6144>2624", 6144, 2624},  {"q_b 2048>16384", 2048, 16384},
                          {"kv_b 512>28672", 512, 28672},      {"o 16384>6144", 16384, 6144},
                          {"gate_up 6144>24576", 6144, 24576}, {"shared gate_up 6144>4096", 6144, 4096},
                          {"TP8 q_b 2048>2048", 2048, 2048},   {"TP8 o 2048>6144", 2048, 6144}};
  if (what == "all" || what == "linear") {
    for (const Shape& shape : shapes) {
      for (const int64_t rows : {1, 64}) bench_cublas(bench, shape, rows);
      for (const Format& format : {kBf16, kFp8BlockF32, kFp8BlockUe8m0, kNvfp4})
        bench_linear(bench, shape, format, {1, 8, 64});
    }
  }
  if (what == "one") {  // for a profiler
    for (const Format& format : {kFp8BlockF32, kNvfp4}) bench_linear(bench, shapes[4], format, {1});
  }
  if (what == "all" || what == "moe") {
    for (const Format& format : {kFp8BlockF32, kNvfp4}) {
      bench_moe(bench, "moe 256 x 2048", 2048, format, {1, 8, 64});
      bench_moe(bench, "moe TP8 256 x 256", 256, format, {1, 8, 64});
    }
  }
}
