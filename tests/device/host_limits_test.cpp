// Memory bounds of a process as the system writes them down, in both versions of control groups.
#include "device/host_limits.h"

#include <gtest/gtest.h>

#include "device/isa.h"
#include "device/profiles.h"
#include "support/folder.h"

namespace plumb {
namespace {

using testing::TemporaryFolder;
using testing::write_file;

constexpr int64_t kGiB = int64_t{1} << 30;

void write_meminfo(const TemporaryFolder& root, int64_t bytes) {
  write_file(root / "proc/meminfo",
             "MemTotal:       " + std::to_string(bytes / 1024) + " kB\nMemFree:  1 kB\nMemAvailable:   1048576 kB\n");
}

TEST(HostLimits, WithoutAGroupTheMachineIsTheBound) {
  TemporaryFolder root;
  write_meminfo(root, 64 * kGiB);
  write_file(root / "proc/self/cgroup", "0::/user.slice/session\n");
  write_file(root / "sys/fs/cgroup/user.slice/session/memory.max", "max\n");
  const HostLimits limits = read_host_limits(root.path());
  EXPECT_EQ(limits.physical, 64 * kGiB);
  EXPECT_EQ(limits.available, kGiB);
  EXPECT_EQ(limits.cgroup, 0);
  EXPECT_EQ(limits.usable, 64 * kGiB);
  EXPECT_EQ(limits.bound, "physical memory");
}

TEST(HostLimits, TheSmallestOfNestedGroupsCounts) {
  TemporaryFolder root;
  write_meminfo(root, 64 * kGiB);
  write_file(root / "proc/self/cgroup", "0::/pod/container\n");
  write_file(root / "sys/fs/cgroup/pod/memory.max", std::to_string(8 * kGiB) + "\n");
  write_file(root / "sys/fs/cgroup/pod/container/memory.max", std::to_string(16 * kGiB) + "\n");
  const HostLimits limits = read_host_limits(root.path());
  EXPECT_EQ(limits.cgroup, 8 * kGiB);
  EXPECT_EQ(limits.usable, 8 * kGiB);
  EXPECT_NE(limits.bound.find("pod/memory.max"), std::string::npos) << limits.bound;
}

TEST(HostLimits, AContainerSeesItsGroupAsTheRoot) {
  TemporaryFolder root;
  write_meminfo(root, 64 * kGiB);
  write_file(root / "proc/self/cgroup", "0::/\n");
  write_file(root / "sys/fs/cgroup/memory.max", std::to_string(4 * kGiB) + "\n");
  EXPECT_EQ(read_host_limits(root.path()).usable, 4 * kGiB);
}

TEST(HostLimits, TheFirstVersionToo) {
  TemporaryFolder root;
  write_meminfo(root, 64 * kGiB);
  write_file(root / "proc/self/cgroup", "11:cpuset:/docker/abc\n9:memory:/docker/abc\n1:name=systemd:/\n");
  write_file(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write_file(root / "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", std::to_string(2 * kGiB) + "\n");
  const HostLimits limits = read_host_limits(root.path());
  EXPECT_EQ(limits.usable, 2 * kGiB);
  EXPECT_NE(limits.bound.find("docker/abc"), std::string::npos) << limits.bound;
}

TEST(DeviceProfiles, EachIsAGpuWithMemory) {
  for (const std::string& name : device_profile_names()) {
    const DeviceInfo* device = find_device_profile(name);
    ASSERT_NE(device, nullptr) << name;
    EXPECT_TRUE(device->is_gpu() && device->has(Isa::CudaPortable)) << name;
    EXPECT_GT(device->memory_bytes, 30 * kGiB) << name;
  }
  EXPECT_EQ(find_device_profile("tpu"), nullptr);
  EXPECT_TRUE(find_device_profile("rtx-pro-6000")->has(Isa::Sm120a));
  EXPECT_FALSE(detect_cpu().is_gpu());
  EXPECT_TRUE(gpu_of("new", "13.0", kGiB, 1024).is_gpu());
  EXPECT_TRUE(gpu_of("new", "13.0", kGiB, 1024).isas.empty());
}

}  // namespace
}  // namespace plumb
