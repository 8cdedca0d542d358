#include "device/isa.h"

#include <algorithm>
#include <thread>

#include "device/host_limits.h"

namespace plumb {

std::string to_string(Isa isa) {
  switch (isa) {
    case Isa::Generic:
      return "generic";
    case Isa::Avx2:
      return "avx2";
    case Isa::Avx512:
      return "avx512";
    case Isa::Avx512Bf16:
      return "avx512bf16";
    case Isa::Sm90a:
      return "sm_90a";
    case Isa::Sm100a:
      return "sm_100a";
    case Isa::Sm120a:
      return "sm_120a";
    case Isa::CudaPortable:
      return "cuda";
  }
  return "?";
}

bool DeviceInfo::has(Isa isa) const { return std::find(isas.begin(), isas.end(), isa) != isas.end(); }

bool DeviceInfo::is_gpu() const {
  return shared_bytes > 0 || std::any_of(isas.begin(), isas.end(), [](Isa isa) { return isa > Isa::Avx512Bf16; });
}

DeviceInfo detect_cpu(Isa ceiling) {
  DeviceInfo info{.name = "cpu", .isas = {Isa::Generic}};
  info.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const HostLimits limits = read_host_limits();
  info.memory_bytes = limits.usable;
  info.memory_bound = limits.bound;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  if (avx2 && ceiling >= Isa::Avx2) info.isas.push_back(Isa::Avx2);
  if (avx512 && ceiling >= Isa::Avx512) info.isas.push_back(Isa::Avx512);
  if (bf16 && ceiling >= Isa::Avx512Bf16) info.isas.push_back(Isa::Avx512Bf16);
#else
  static_cast<void>(ceiling);
#endif
  return info;
}

}  // namespace plumb
