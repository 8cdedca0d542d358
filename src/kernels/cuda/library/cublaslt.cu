// The bf16 product of cuBLASLt. The library is loaded when it is there: a program that comes without it has one
// candidate fewer, and starts. Its choice of algorithm depends on the number of rows, and so do a row's bits.
#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/library/library_kernels.h"

namespace plumb::cuda {
namespace {

constexpr int64_t kLibraryWorkspace = int64_t{32} << 20;

struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  bool there = false;

  Library() {
    void* handle = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    there = handle != nullptr;
    const auto find = [&](auto& function, const char* name) {
      if (there) function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      there = there && function != nullptr;
    };
    find(create, "cublasLtCreate");
    find(matmul, "cublasLtMatmul");
    find(desc_create, "cublasLtMatmulDescCreate");
    find(desc_set, "cublasLtMatmulDescSetAttribute");
    find(layout_create, "cublasLtMatrixLayoutCreate");
    find(preference_create, "cublasLtMatmulPreferenceCreate");
    find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
  }
};
const Library& library() {
  static const Library kLibrary;
  return kLibrary;
}

void must(cublasStatus_t status, const char* what) { PLUMB_CHECK(status == CUBLAS_STATUS_SUCCESS, what); }

// What opens or chooses may allocate, which a stream that records launches would refuse.
struct WhileRecording {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  WhileRecording() { cudaThreadExchangeStreamCaptureMode(&mode); }
  ~WhileRecording() { cudaThreadExchangeStreamCaptureMode(&mode); }
  WhileRecording(const WhileRecording&) = delete;
  WhileRecording& operator=(const WhileRecording&) = delete;
};

// y[rows, n] f32 = x[rows, k] . w[n, k]^T, both bf16 without gaps, chosen once a shape.
struct Shape {
  cublasLtMatmulDesc_t product{};
  cublasLtMatrixLayout_t w{}, x{}, y{};
  cublasLtMatmulAlgo_t algorithm{};
};
class Products {
 public:
  const Shape& shape(int64_t rows, int64_t n, int64_t k) {
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = shapes_.try_emplace({rows, n, k});
    if (fresh) at->second = choose(rows, n, k);
    return at->second;
  }
  cublasLtHandle_t handle() {
    const std::lock_guard lock(mutex_);
    return opened();
  }

 private:
  cublasLtHandle_t opened() {
    const WhileRecording recording;
    if (handle_ == nullptr) must(library().create(&handle_), "cublasLtCreate");
    return handle_;
  }
  Shape choose(int64_t rows, int64_t n, int64_t k) {
    const Library& lib = library();
    Shape s;
    must(lib.desc_create(&s.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    must(lib.desc_set(s.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), "a transposed weight");
    const auto u = [](int64_t i) { return static_cast<uint64_t>(i); };
    must(lib.layout_create(&s.w, CUDA_R_16BF, u(k), u(n), k), "layout of the weight");
    must(lib.layout_create(&s.x, CUDA_R_16BF, u(k), u(rows), k), "layout of x");
    must(lib.layout_create(&s.y, CUDA_R_32F, u(n), u(rows), n), "layout of y");
    cublasLtMatmulPreference_t preference{};
    must(lib.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    const size_t workspace = kLibraryWorkspace;
    must(lib.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
         "workspace");
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    must(lib.heuristic(opened(), s.product, s.w, s.x, s.y, s.y, preference, 1, &found, &count), "cuBLASLt's choice");
    PLUMB_CHECK(count == 1, "cuBLASLt has no kernel for a product");
    s.algorithm = found.algo;
    return s;
  }
  std::mutex mutex_{};
  cublasLtHandle_t handle_{};
  std::map<std::tuple<int64_t, int64_t, int64_t>, Shape> shapes_{};
};
Products& products() {
  static Products kProducts;
  return kProducts;
}

// Blocks: [parts of a row, rows]; f32 rows to bf16 without gaps.
__global__ void round_rows(Act x, uint16_t* out, int64_t k) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 4, row = blockIdx.y;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (i + j < k) out[row * k + i + j] = f32_to_bf16(x.load(row, i + j));
}
__global__ void finish_rows(const float* from, Act y, const float* bias, bool round, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (i >= n) return;
  float value = from[row * n + i];
  if (bias != nullptr) value += bias[i];
  y.store(row, i, static_cast<double>(value), round);
}

size_t workspace_bytes(int64_t rows, int64_t n, int64_t k) {
  return static_cast<size_t>(aligned(rows * k * 2) + aligned(rows * n * 4) + kLibraryWorkspace);
}
size_t linear_workspace(const Call& c) { return workspace_bytes(c.m_hi, c.n, c.k); }

void linear(const LinearArgs& a, Stream& s) {
  const int64_t rows = a.x.dim(0), n = a.w->n(), k = a.w->k();
  PLUMB_CHECK(s.workspace_bytes >= workspace_bytes(rows, n, k), "workspace too small");
  const Mat w = mat(*a.w);
  std::byte* memory = s.workspace;
  auto* rounded = reinterpret_cast<uint16_t*>(memory);
  memory += aligned(rows * k * 2);
  const Act y = act(a.y);
  const bool direct = !y.bf16 && y.ld == n && reinterpret_cast<uintptr_t>(y.data) % 256 == 0 && a.w->bias == nullptr &&
                      !a.numerics.round_bf16;
  float* out = direct ? static_cast<float*>(y.data) : reinterpret_cast<float*>(memory);
  memory += aligned(rows * n * 4);
  constexpr unsigned kThreads = 256;
  round_rows<<<dim3(static_cast<unsigned>((k + 4 * kThreads - 1) / (4 * kThreads)), static_cast<unsigned>(rows)),
               kThreads, 0, handle(s)>>>(act(a.x), rounded, k);
  const Shape& shape = products().shape(rows, n, k);
  const float one = 1, zero = 0;
  must(library().matmul(products().handle(), shape.product, &one, w.data, shape.w, rounded, shape.x, &zero, out,
                        shape.y, out, shape.y, &shape.algorithm, memory, kLibraryWorkspace, handle(s)),
       "cublasLtMatmul");
  if (!direct)
    finish_rows<<<dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads), static_cast<unsigned>(rows)), kThreads, 0,
                  handle(s)>>>(out, y, a.w->bias, a.numerics.round_bf16, n);
}

}  // namespace

void add_library_kernels(std::vector<Kernel>& out) {
  if (!library().there) return;
  Contract c;
  c.name = "linear.bf16.cublaslt.cuda";
  c.op = Op::Linear;
  c.weight = {kBf16};
  c.reads = {kBf16};
  c.weight_layout = Layout::CudaRowMajor;
  c.arch = Isa::CudaPortable;
  c.limits = {.n_multiple = 8, .k_multiple = 8};
  c.round_bf16 = true;
  c.deterministic = true;
  c.flushes_denormals = true;
  c.sum_order = "cublaslt";
  c.error_bound = {.c = 1, .unit = DType::BF16, .floor = 0x1p-110};
  c.preference = 40;  // docs/performance.md
  c.workspace = linear_workspace;
  out.push_back(make_kernel<LinearArgs, linear>(std::move(c)));
}

}  // namespace plumb::cuda
