#include "device/cuda_device.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace plumb {
namespace {

Error cuda_error(const char* what, cudaError_t status) {
  return {Code::Environment,
          std::string(what) + ": " + cudaGetErrorString(status),
          cudaGetErrorName(status),
          {"--backend cpu", "a look at nvidia-smi"}};
}

void must(cudaError_t status, const char* what) { require_cuda(status, what); }

cudaStream_t handle(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

Result<std::shared_ptr<std::byte>> allocate(size_t bytes, const char* purpose) {
  void* base = nullptr;
  cudaError_t status = cudaMalloc(&base, bytes == 0 ? 1 : bytes);
  // The zeroing runs in another stream than what uses the block, so it must be over: an upload could come before it.
  if (status == cudaSuccess) status = cudaMemset(base, 0, bytes);
  if (status == cudaSuccess) status = cudaStreamSynchronize(nullptr);
  if (status != cudaSuccess) {
    cudaGetLastError();  // or the next launch would be blamed for it
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    return Error{Code::Environment,
                 "cannot get " + std::to_string(bytes) + " bytes of device memory for " + purpose,
                 std::string(cudaGetErrorString(status)) + "; " + std::to_string(free_bytes) + " of " +
                     std::to_string(total) + " bytes are free",
                 {"a shorter --context", "fewer --pages"}};
  }
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(base), [](std::byte* p) { cudaFree(p); });
}

Result<std::shared_ptr<std::byte>> allocate_staging(size_t bytes, const char* purpose) {
  void* base = nullptr;
  const cudaError_t status = cudaHostAlloc(&base, bytes == 0 ? 1 : bytes, cudaHostAllocDefault);
  if (status != cudaSuccess)
    return Error{Code::Environment,
                 "cannot get " + std::to_string(bytes) + " bytes of page-locked memory for " + purpose,
                 cudaGetErrorString(status),
                 {"a shorter --context", "fewer --max-running", "a larger limit of locked memory (ulimit -l)"}};
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(base), [](std::byte* p) { cudaFreeHost(p); });
}

void upload(void* to, const void* from, size_t bytes, Stream& stream) {
  must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle(stream)), "copy to the device");
}
void download(void* to, const void* from, size_t bytes, Stream& stream) {
  must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle(stream)), "copy from the device");
  must(cudaStreamSynchronize(handle(stream)), "a step on the device");
}
void clear(void* to, size_t bytes, Stream& stream) {
  must(cudaMemsetAsync(to, 0, bytes, handle(stream)), "zeroing device memory");
}
void synchronise(Stream& stream) {
  must(cudaGetLastError(), "a launch");
  must(cudaStreamSynchronize(handle(stream)), "a step on the device");
}

struct Scan {
  ScanPiece pieces[kScanPieces];
  int count;
};
constexpr int kScanThreads = 256;
constexpr int kScanEach = 4;                            // columns of a thread: one load, where they lie for it
constexpr int kScanColumns = kScanEach * kScanThreads;  // of a block

// Block (x, y): column piece y of row x, counted over all pieces.
__global__ void __launch_bounds__(kScanThreads)
    scan_rows(__grid_constant__ const Scan scan, int32_t* marks, int stride) {
  int row = static_cast<int>(blockIdx.x), p = 0;
  while (row >= scan.pieces[p].rows) row -= scan.pieces[p++].rows;
  const ScanPiece& piece = scan.pieces[p];
  const int begin = static_cast<int>(blockIdx.y) * kScanColumns;
  if (begin >= piece.columns) return;
  const float* x = piece.data + row * piece.ld;
  const int first = begin + kScanEach * static_cast<int>(threadIdx.x);
  float value[kScanEach] = {};
  if (first + kScanEach <= piece.columns && reinterpret_cast<uintptr_t>(x + first) % sizeof(float4) == 0) {
    const float4 four = *reinterpret_cast<const float4*>(x + first);
    value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
  } else {
    for (int i = 0; i < kScanEach && first + i < piece.columns; ++i) value[i] = x[first + i];
  }
  bool bad = false;
  for (const float v : value) bad |= !(v < INFINITY) || (v == -INFINITY && !piece.minus_infinity);
  if (__any_sync(0xffffffffu, bad) != 0 && threadIdx.x % 32 == 0)
    atomicMax(marks + (piece.first_row + row) * stride, piece.mark);
}

void scan(std::span<const ScanPiece> pieces, int32_t* marks, int stride, Stream& stream) {
  Scan all{.pieces = {}, .count = static_cast<int>(pieces.size())};
  int rows = 0, columns = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    all.pieces[i] = pieces[i];
    rows += pieces[i].rows;
    columns = std::max(columns, pieces[i].columns);
  }
  if (rows == 0) return;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((columns + kScanColumns - 1) / kScanColumns));
  scan_rows<<<grid, kScanThreads, 0, handle(stream)>>>(all, marks, stride);
}

void enter(const Stream& stream) {
  int device = 0;
  must(cudaStreamGetDevice(handle(stream), &device), "the device of a stream");
  must(cudaSetDevice(device), "using the device");
}
std::shared_ptr<void> new_stream(const Stream& like) {
  enter(like);
  int least = 0, greatest = 0;
  must(cudaDeviceGetStreamPriorityRange(&least, &greatest), "the priorities of streams");
  cudaStream_t made = nullptr;
  must(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, least), "one more stream");
  return {static_cast<void*>(made), [](void* s) { cudaStreamDestroy(static_cast<cudaStream_t>(s)); }};
}

std::shared_ptr<void> record(const std::function<void()>& launches, Stream& stream) {
  must(cudaGetLastError(), "a launch");
  must(cudaStreamBeginCapture(handle(stream), cudaStreamCaptureModeThreadLocal), "recording a step");
  launches();
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(handle(stream), &graph), "recording a step");
  cudaGraphExec_t ready = nullptr;
  must(cudaGraphInstantiate(&ready, graph, 0), "preparing a recorded step");
  cudaGraphDestroy(graph);
  return {static_cast<void*>(ready), [](void* p) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(p)); }};
}
void replay(void* recording, Stream& stream) {
  must(cudaGraphLaunch(static_cast<cudaGraphExec_t>(recording), handle(stream)), "a recorded step");
}

std::string id_of(const cudaDeviceProp& properties) {
  std::string id;
  for (const char byte : properties.uuid.bytes) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    id += text;
  }
  return id;
}

struct Compiled {
  Isa isa;
  int major, minor;
};
constexpr Compiled kCompiled[] = {
#ifdef PLUMB_SM90A
    {Isa::Sm90a, 9, 0},
#endif
#ifdef PLUMB_SM100A
    {Isa::Sm100a, 10, 0},
#endif
#ifdef PLUMB_SM120A
    {Isa::Sm120a, 12, 0},
#endif
};

}  // namespace

void require_cuda(int status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "plumb: device lost: %s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(status)));
  std::_Exit(exit_code(Code::Peer));
}

std::string cuda_architectures() {
  std::string text;
  for (const Compiled& c : kCompiled) text += (text.empty() ? "" : ", ") + to_string(c.isa);
  return text;
}

Result<CudaPlace> cuda_place(int rank_here) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0)
    return cuda_error("no CUDA device", status);
  CudaPlace place{.ordinal = rank_here % count};
  cudaDeviceProp properties{};
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, place.ordinal); status != cudaSuccess)
    return cuda_error("cannot read the device's properties", status);
  place.id = id_of(properties);
  return place;
}

std::string cuda_unreachable(int ordinal, const std::vector<std::string>& ids) {
  int count = 0;
  cudaGetDeviceCount(&count);
  for (const std::string& id : ids) {
    int other = 0;
    for (; other < count; ++other) {
      cudaDeviceProp properties{};
      if (cudaGetDeviceProperties(&properties, other) == cudaSuccess && id_of(properties) == id) break;
    }
    if (other == count) return "a rank's GPU is on another machine, or hidden from this process";
    int can = other == ordinal ? 1 : 0;
    if (can == 0) cudaDeviceCanAccessPeer(&can, ordinal, other);
    if (can == 0)
      return "GPU " + std::to_string(ordinal) + " has no peer access to GPU " + std::to_string(other) +
             " (nvidia-smi topo -p2p r)";
  }
  return "";
}

Result<CudaInfo> find_cuda(int ordinal) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess)
    return cuda_error("no CUDA device", status);
  if (ordinal < 0 || ordinal >= count)
    return Error{Code::Usage,
                 "there is no CUDA device " + std::to_string(ordinal),
                 std::to_string(count) + " devices are visible",
                 {}};
  cudaDeviceProp properties{};
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, ordinal); status != cudaSuccess)
    return cuda_error("cannot read the device's properties", status);
  CudaInfo info{.ordinal = ordinal,
                .compute_major = properties.major,
                .compute_minor = properties.minor,
                .multiprocessors = properties.multiProcessorCount,
                .l2_bytes = properties.l2CacheSize,
                .shared_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin)};
  info.device.name = properties.name;
  info.device.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.device.memory_bound = "the card";
  info.device.shared_bytes = info.shared_per_block;
  for (const Compiled& c : kCompiled)
    if (c.major == properties.major && c.minor == properties.minor) info.device.isas = {c.isa, Isa::CudaPortable};
  if (info.device.isas.empty())
    return Error{Code::Unsupported,
                 info.device.name + " has compute capability " + std::to_string(properties.major) + "." +
                     std::to_string(properties.minor),
                 "this build has code for " + cuda_architectures(),
                 {"a build for that architecture", "--backend cpu"}};
  size_t free_bytes = 0, total = 0;
  cudaSetDevice(ordinal);
  if (const cudaError_t status = cudaMemGetInfo(&free_bytes, &total); status != cudaSuccess)
    return cuda_error("cannot read the device's memory", status);
  info.free_bytes = static_cast<int64_t>(free_bytes);
  return info;
}

Result<CudaStream> CudaStream::open(int ordinal) {
  if (const cudaError_t status = cudaSetDevice(ordinal); status != cudaSuccess)
    return cuda_error("cannot use the device", status);
  cudaStream_t raw = nullptr;
  if (const cudaError_t status = cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking); status != cudaSuccess)
    return cuda_error("cannot make a stream", status);
  CudaStream out;
  out.owner_ = {raw, [](void* s) { cudaStreamDestroy(static_cast<cudaStream_t>(s)); }};
  return Result<CudaStream>(std::move(out));
}

Memory CudaStream::memory() const {
  return {.where = Where::Cuda,
          .allocate = allocate,
          .allocate_staging = allocate_staging,
          .upload = upload,
          .download = download,
          .clear = clear,
          .synchronise = synchronise,
          .scan = scan,
          .enter = enter,
          .new_stream = new_stream,
          .record = record,
          .replay = replay};
}

}  // namespace plumb
