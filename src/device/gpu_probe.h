// NVIDIA GPUs of this machine, asked of the driver itself, so that a build without CUDA can tell too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plumb {

struct GpuFacts {
  std::string name{};
  std::string compute_capability{};  // "9.0"
  int64_t memory_bytes = 0;
  int sm_clock_mhz = 0, sm_clock_most_mhz = 0;  // 0: not told
  uint64_t slowed_by = 0;                       // NVML's reasons for a lowered clock, idleness left out
};

struct GpuProbe {
  std::string problem{};         // why there is nothing to see; empty: the driver answered
  std::string driver_version{};  // of the kernel module
  int cuda_version = 0;          // newest that the driver runs: 13000 is 13.0
  std::vector<GpuFacts> gpus{};
  int peer_pairs = 0, peer_pairs_reachable = 0;  // ordered pairs of different GPUs
  std::string nccl_version{};                    // empty: libnccl.so.2 is not there
};
GpuProbe probe_gpus();

}  // namespace plumb
