// What this process may take of the host: the machine, its control groups, its resource limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace plumb {

struct HostLimits {
  int64_t physical = 0;       // bytes of memory of the machine
  int64_t available = 0;      // free or reclaimable at the time of asking
  int64_t cgroup = 0;         // smallest memory limit of this process' control group and those above it; 0: none
  std::string cgroup_file{};  // where that stands
  int64_t address_space = 0;  // RLIMIT_AS; 0: none
  int64_t data_segment = 0;   // RLIMIT_DATA; 0: none
  int64_t locked = 0;         // RLIMIT_MEMLOCK; 0: none
  int64_t open_files = 0;     // RLIMIT_NOFILE, the hard limit: a server raises its own to it
  int64_t usable = 0;         // the smallest of those that bound memory
  std::string bound{};        // which one that is
};

// `root`: where /proc and /sys are, for tests.
HostLimits read_host_limits(const std::filesystem::path& root = "/");

}  // namespace plumb
