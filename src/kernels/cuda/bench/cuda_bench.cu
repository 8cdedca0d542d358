// plumb_cuda_bench: kernels of the CUDA backend on GLM-5 shapes, as medians of event times, against what this card
// gives at best. Weights are random bytes of the format and cold: distinct copies of at least 512 MB in turn.
// cuBLASLt's bf16 product, chosen by its heuristic, is the control.
#include <cublasLt.h>

#include <cstring>

#include "kernels/cuda/bench/bench.cuh"

namespace plumb::bench {
namespace {

struct Shape {
  const char* name;
  int64_t k, n;
};

void bench_linear(Bench& bench, const Shape& shape, const Format& format, const std::vector<int64_t>& rows_list) {
  const int64_t bytes = weight_bytes(format, shape.n, shape.k);
  const auto copies = static_cast<int>(std::clamp<int64_t>(kCold / bytes + 1, 2, 64));
  const std::vector<Weight> weights = make_weights(format, shape.n, shape.k, copies);
  for (const int64_t rows : rows_list) {
    const Call call{.op = Op::Linear, .weight = format, .m_lo = rows, .m_hi = rows, .n = shape.n, .k = shape.k};
    const Tensor x = device_rows(rows, shape.k), y = device_rows(rows, shape.n);
    for (const Kernel* kernel : bench.candidates(bench.find(call), "cublaslt", call)) {
      const double us = bench.timer.median(copies, [&](int i) {
        Stream stream = bench.stream();
        const LinearArgs args{.w = &weights[static_cast<size_t>(i)], .x = x, .y = y};
        kernel->launch(&args, stream);
      });
      bench.print(std::string(shape.name) + " " + format.to_string(), kernel->contract.name, rows, us,
                  bytes + 4 * rows * (shape.n + shape.k));
    }
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
  for (const int64_t rows : rows_list) {
    const Call call{
        .op = Op::Moe, .weight = format, .m_lo = rows, .m_hi = rows, .n = inter, .k = kHidden, .topk = kChosen};
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
    for (const Kernel* kernel : bench.candidates(bench.find(call), ".wide.", call)) {
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
    }
    for (Tensor& t : experts) cudaFree(t.data);
    cudaFree(x.data), cudaFree(y.data), cudaFree(weights.data);
  }
  for (const auto* part : {&gate, &up, &down}) cudaFree(const_cast<std::byte*>((*part)[0].prepared));
}

}  // namespace
}  // namespace plumb::bench

int main(int argc, char** argv) {
  using namespace plumb;
  using namespace plumb::bench;
  const std::string what = argc > 1 ? argv[1] : "all";
  std::vector<int64_t> rows;  // of products: plumb_cuda_bench PART ROWS...
  for (int i = 2; i < argc; ++i) rows.push_back(std::atoll(argv[i]));
  if (rows.empty()) rows = {1, 8, 64};
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
        bench_linear(bench, shape, format, rows);
    }
  }
  if (what == "all" || what == "step") bench_step_ops(bench);
  if (what == "prefill") {
    for (const Format& format : {kBf16, kFp8BlockF32, kNvfp4}) bench_linear(bench, shapes[4], format, {512, 4096});
  }
  if (what == "attention") bench_attention(bench);
  if (what == "one") {  // for a profiler
    for (const Format& format : {kBf16, kFp8BlockF32, kNvfp4}) bench_linear(bench, shapes[4], format, {64});
    bench_one_attention(bench);
  }
  if (what == "all" || what == "moe") {
    for (const Format& format : {kFp8BlockF32, kNvfp4}) {
      bench_moe(bench, "moe 256 x 2048", 2048, format, rows);
      bench_moe(bench, "moe TP8 256 x 256", 256, format, rows);
    }
  }
}
