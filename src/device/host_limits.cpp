#include "device/host_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace plumb {
namespace {

namespace fs = std::filesystem;

int64_t limit_of(__rlimit_resource resource, bool hard = false) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return 0;
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY || value > INT64_MAX ? 0 : static_cast<int64_t>(value);
}

// "MemTotal:       24576 kB"
void read_meminfo(const fs::path& file, HostLimits& out) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kilobytes = 0;
    if (!(words >> name >> kilobytes)) continue;
    if (name == "MemTotal:") out.physical = kilobytes * 1024;
    if (name == "MemAvailable:") out.available = kilobytes * 1024;
  }
}

// A file with one number; "max" and absence are no limit.
int64_t read_limit(const fs::path& file) {
  std::ifstream in(file);
  int64_t value = 0;
  return in >> value && value > 0 ? value : 0;
}

// The group's own limit and those of the groups above it. A container sees its own group as the root, so the file may
// stand in the mount itself.
void walk_up(const fs::path& mount, const std::string& group, const char* name, HostLimits& out) {
  fs::path relative = fs::path(group).relative_path();
  while (true) {
    const fs::path file = mount / relative / name;
    const int64_t limit = read_limit(file);
    // v1 says "no limit" by a number larger than any machine.
    if (limit > 0 && limit < out.physical && (out.cgroup == 0 || limit < out.cgroup)) {
      out.cgroup = limit;
      out.cgroup_file = file.string();
    }
    if (relative.empty()) return;
    relative = relative.parent_path();
  }
}

// "0::/user.slice/x" (v2) or "9:memory:/docker/abc" (v1)
void read_cgroups(const fs::path& root, HostLimits& out) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") walk_up(root / "sys/fs/cgroup", group, "memory.max", out);
    if (controllers.find(",memory,") != std::string::npos)
      walk_up(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes", out);
  }
}

}  // namespace

HostLimits read_host_limits(const fs::path& root) {
  HostLimits out;
  read_meminfo(root / "proc/meminfo", out);
  if (out.physical == 0) out.physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  read_cgroups(root, out);
  out.address_space = limit_of(RLIMIT_AS);
  out.data_segment = limit_of(RLIMIT_DATA);
  out.locked = limit_of(RLIMIT_MEMLOCK);
  out.open_files = limit_of(RLIMIT_NOFILE, /*hard=*/true);
  out.usable = out.physical;
  out.bound = "physical memory";
  const auto bound_by = [&](int64_t limit, const std::string& what) {
    if (limit <= 0 || limit >= out.usable) return;
    out.usable = limit;
    out.bound = what;
  };
  bound_by(out.cgroup, out.cgroup_file);
  bound_by(out.address_space, "ulimit -v (address space)");
  bound_by(out.data_segment, "ulimit -d (data segment)");
  return out;
}

}  // namespace plumb
