#include "device/gpu_probe.h"

#include <dlfcn.h>

#include <array>
#include <fstream>
#include <memory>

namespace plumb {
namespace {

// A shared library that may be absent. Stays loaded: drivers do not like to be unloaded.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}
  explicit operator bool() const { return handle_ != nullptr; }
  template <class Function>
  Function* find(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, name));
  }

 private:
  void* handle_;
};

// CUdevice_attribute
constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;

void ask_driver(const Library& cuda, GpuProbe& out) {
  const auto init = cuda.find<int(unsigned)>("cuInit");
  const auto version = cuda.find<int(int*)>("cuDriverGetVersion");
  const auto count_of = cuda.find<int(int*)>("cuDeviceGetCount");
  const auto name_of = cuda.find<int(char*, int, int)>("cuDeviceGetName");
  const auto memory_of = cuda.find<int(size_t*, int)>("cuDeviceTotalMem_v2");
  const auto attribute_of = cuda.find<int(int*, int, int)>("cuDeviceGetAttribute");
  const auto peers = cuda.find<int(int*, int, int)>("cuDeviceCanAccessPeer");
  if (init == nullptr || version == nullptr || count_of == nullptr || name_of == nullptr || memory_of == nullptr ||
      attribute_of == nullptr || peers == nullptr) {
    out.problem = "libcuda.so.1 lacks functions of the driver's interface";
    return;
  }
  version(&out.cuda_version);
  int count = 0;
  if (const int status = init(0); status != 0 || count_of(&count) != 0 || count == 0) {
    out.problem = status == 0 ? "the driver sees no GPU"
                              : "the driver does not start (CUDA error " + std::to_string(status) + ")";
    return;
  }
  for (int device = 0; device < count; ++device) {
    GpuFacts gpu;
    std::array<char, 128> name{};
    size_t bytes = 0;
    int major = 0, minor = 0;
    name_of(name.data(), static_cast<int>(name.size()), device);
    memory_of(&bytes, device);
    attribute_of(&major, kCapabilityMajor, device);
    attribute_of(&minor, kCapabilityMinor, device);
    gpu.name = name.data();
    gpu.memory_bytes = static_cast<int64_t>(bytes);
    gpu.compute_capability = std::to_string(major) + "." + std::to_string(minor);
    out.gpus.push_back(std::move(gpu));
    for (int other = 0; other < count; ++other) {
      int reachable = 0;
      if (other == device) continue;
      ++out.peer_pairs;
      if (peers(&reachable, device, other) == 0 && reachable != 0) ++out.peer_pairs_reachable;
    }
  }
}

// Clocks, by the management library: its devices come in the same order unless CUDA_VISIBLE_DEVICES says otherwise, so
// they are only read when the counts agree.
void ask_management(GpuProbe& out) {
  const Library nvml("libnvidia-ml.so.1");
  const auto init = nvml.find<int()>("nvmlInit_v2");
  const auto count_of = nvml.find<int(unsigned*)>("nvmlDeviceGetCount_v2");
  const auto handle_of = nvml.find<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
  const auto clock_of = nvml.find<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
  const auto most_of = nvml.find<int(void*, int, unsigned*)>("nvmlDeviceGetMaxClockInfo");
  const auto reasons_of = nvml.find<int(void*, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons");
  if (init == nullptr || count_of == nullptr || handle_of == nullptr || clock_of == nullptr || most_of == nullptr)
    return;
  unsigned count = 0;
  if (init() != 0 || count_of(&count) != 0 || count != out.gpus.size()) return;
  constexpr int kSmClock = 1;
  constexpr unsigned long long kIdle = 1;
  for (unsigned i = 0; i < count; ++i) {
    void* device = nullptr;
    unsigned now = 0, most = 0;
    unsigned long long reasons = 0;
    if (handle_of(i, &device) != 0) continue;
    if (clock_of(device, kSmClock, &now) == 0) out.gpus[i].sm_clock_mhz = static_cast<int>(now);
    if (most_of(device, kSmClock, &most) == 0) out.gpus[i].sm_clock_most_mhz = static_cast<int>(most);
    if (reasons_of != nullptr && reasons_of(device, &reasons) == 0) out.gpus[i].slowed_by = reasons & ~kIdle;
  }
}

std::string kernel_module_version() {
  std::ifstream in("/proc/driver/nvidia/version");
  std::string line;
  std::getline(in, line);  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  ..."
  const size_t at = line.find("Module");
  const size_t begin = at == std::string::npos ? at : line.find_first_of("0123456789", at);
  return begin == std::string::npos ? "" : line.substr(begin, line.find(' ', begin) - begin);
}

}  // namespace

GpuProbe probe_gpus() {
  GpuProbe out;
  out.driver_version = kernel_module_version();
  if (const auto version = Library("libnccl.so.2").find<int(int*)>("ncclGetVersion")) {
    int number = 0;
    version(&number);
    out.nccl_version =
        std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." + std::to_string(number % 100);
  }
  const Library cuda("libcuda.so.1");
  if (!cuda) {
    out.problem = out.driver_version.empty() ? "no NVIDIA driver is loaded"
                                             : "the kernel module is loaded, but libcuda.so.1 is not found";
    return out;
  }
  ask_driver(cuda, out);
  if (out.problem.empty()) ask_management(out);
  return out;
}

}  // namespace plumb
