// plumb doctor: what of this machine helps or hinders serving, each finding with its fix.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/thread_pool.h"
#include "checkpoint/model_source.h"
#include "cli/cli.h"
#include "device/cuda_device.h"
#include "device/gpu_probe.h"
#include "device/host_limits.h"
#include "device/isa.h"

namespace plumb {
namespace {

struct Finding {
  const char* name;
  const char* verdict;  // "green", "amber", "red", "not asked"
  std::string found;
  std::string fix;  // empty: nothing to do
};
using Findings = std::vector<Finding>;

std::string gib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30));
  return text;
}

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

void check_cpu(Findings& out) {
  const DeviceInfo cpu = detect_cpu();
  const std::string best = to_string(cpu.isas.back());
  const int cores = physical_cores(), threads = cpu.cores;
  const std::string found =
      std::to_string(cores) + " cores to use (" + std::to_string(threads) + " hardware threads), kernels up to " + best;
  if (cpu.isas.size() == 1)
    out.push_back({"cpu", "amber", found, "the portable kernels run and are slow: a CPU with AVX2 or AVX-512"});
  else if (cores * 2 < threads)
    out.push_back({"cpu", "amber", found,
                   "more CPUs for this process: taskset, cpuset or the control group's cpu.max hold it back"});
  else
    out.push_back({"cpu", "green", found, ""});
  const std::string governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (governor.empty())
    out.push_back({"cpu clocks", "green", "the system shows no governor (a virtual machine, or fixed clocks)", ""});
  else
    out.push_back(
        {"cpu clocks", governor == "performance" || governor == "schedutil" ? "green" : "amber", "governor " + governor,
         governor == "performance" || governor == "schedutil" ? "" : "cpupower frequency-set -g performance"});
}

void check_memory(Findings& out) {
  const HostLimits limits = read_host_limits();
  const bool little = limits.available < limits.physical / 2;
  out.push_back({"memory", little ? "amber" : "green",
                 gib(limits.available) + " of " + gib(limits.physical) + " available",
                 little ? "another process holds much of it; plans count on nine tenths of the whole" : ""});
  if (limits.cgroup == 0)
    out.push_back({"control group", "green", "no memory limit", ""});
  else
    out.push_back({"control group", "amber", gib(limits.cgroup) + " by " + limits.cgroup_file,
                   "plans stay inside it; a larger --memory of the container gives more room"});
  const bool bounded = limits.address_space > 0 || limits.data_segment > 0;
  out.push_back(
      {"ulimit memory", bounded ? "amber" : "green",
       bounded ? "bounded to " + gib(limits.usable) + " by " + limits.bound : "address space and data unlimited",
       bounded ? "ulimit -v unlimited; ulimit -d unlimited" : ""});
  out.push_back({"ulimit files",
                 limits.open_files == 0 || limits.open_files >= 65536 ? "green"
                 : limits.open_files >= 4096                          ? "amber"
                                                                      : "red",
                 limits.open_files == 0 ? "unlimited" : std::to_string(limits.open_files) + " open files at most",
                 limits.open_files == 0 || limits.open_files >= 65536
                     ? ""
                     : "ulimit -Hn 1048576, or LimitNOFILE= of the service: each connection and each shard takes one"});
  out.push_back({"ulimit locked memory", limits.locked == 0 || limits.locked >= (int64_t{64} << 20) ? "green" : "amber",
                 limits.locked == 0 ? "unlimited" : gib(limits.locked),
                 limits.locked == 0 || limits.locked >= (int64_t{64} << 20)
                     ? ""
                     : "ulimit -l unlimited, for pinned memory beside GPUs; CPUs do not need it"});
  const std::string huge = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const bool usable = huge.find("[always]") != std::string::npos || huge.find("[madvise]") != std::string::npos;
  out.push_back({"huge pages", usable ? "green" : "amber", huge.empty() ? "the kernel has none" : huge,
                 usable ? "" : "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
}

// Bytes a second from the largest shard, past the page cache where the file system allows it. Negative: cannot tell.
double read_rate(const std::filesystem::path& folder, std::string& file_name, int64_t& all_bytes) {
  std::filesystem::path largest;
  uintmax_t most = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".safetensors") continue;
    const uintmax_t size = it->file_size(error);
    all_bytes += static_cast<int64_t>(size);
    if (size <= most) continue;
    most = size;
    largest = it->path();
  }
  if (largest.empty()) return -1;
  file_name = largest.filename().string();
  int fd = ::open(largest.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd < 0) fd = ::open(largest.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  constexpr size_t kBlock = size_t{8} << 20, kMost = size_t{1} << 30;
  void* block = std::aligned_alloc(4096, kBlock);
  const auto begin = std::chrono::steady_clock::now();
  size_t total = 0;
  double seconds = 0;
  while (total < kMost && seconds < 3) {
    const ssize_t got = ::pread(fd, block, kBlock, static_cast<off_t>(total));
    if (got <= 0) break;
    total += static_cast<size_t>(got);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  std::free(block);
  ::close(fd);
  return seconds > 0 ? static_cast<double>(total) / seconds : -1;
}

void check_disk(const std::filesystem::path& folder, Findings& out) {
  if (folder.empty()) {
    out.push_back({"disk", "not asked", "no model was named", "plumb doctor MODEL reads from its largest file"});
    return;
  }
  std::string file;
  int64_t bytes = 0;
  const double rate = read_rate(folder, file, bytes);
  if (rate < 0) {
    out.push_back(
        {"disk", "red", folder.string() + " has no safetensors file that can be read", "the model's own folder"});
    return;
  }
  char text[160];
  std::snprintf(text, sizeof text, "%.2f GB/s from %s; the whole model (%.1f GB) in %.0f s", rate / 1e9, file.c_str(),
                static_cast<double>(bytes) / 1e9, static_cast<double>(bytes) / rate);
  out.push_back(
      {"disk", rate >= 1e9 ? "green" : "amber", text,
       rate >= 1e9 ? "" : "a local NVMe disk, or the model in memory already (a second start reads the page cache)"});
}

// One card: whether this build has code for it, and how fast it may run now.
void check_gpu(size_t index, const GpuFacts& gpu, const std::string& compiled, Findings& out) {
  const std::string name = std::to_string(index) + ": " + gpu.name + ", compute capability " + gpu.compute_capability +
                           ", " + gib(gpu.memory_bytes);
  std::string wanted = "sm_" + gpu.compute_capability + "a";
  wanted.erase(std::remove(wanted.begin(), wanted.end(), '.'), wanted.end());
  const bool there = compiled.find(wanted) != std::string::npos;
  out.push_back({"gpu code", there ? "green" : "red",
                 name + "; this build has " + (compiled.empty() ? "no GPU code" : compiled),
                 there ? "" : "a build with -DPLUMB_CUDA_ARCHITECTURES=" + wanted.substr(3)});
  if (gpu.sm_clock_most_mhz == 0) return;
  const bool free = gpu.slowed_by == 0;
  out.push_back({"gpu clocks", free ? "green" : "amber",
                 std::to_string(index) + ": " + std::to_string(gpu.sm_clock_mhz) + " of " +
                     std::to_string(gpu.sm_clock_most_mhz) + " MHz now" +
                     (free ? "" : ", held down (NVML reasons " + std::to_string(gpu.slowed_by) + ")"),
                 free ? "" : "nvidia-smi -q -d PERFORMANCE names the cause: power, heat or locked clocks"});
}

void check_gpus(Findings& out) {
  const GpuProbe probe = probe_gpus();
  const std::string compiled = cuda_architectures();
  if (!probe.problem.empty()) {
    out.push_back({"gpu driver", probe.driver_version.empty() ? "not asked" : "red", probe.problem,
                   probe.driver_version.empty()
                       ? "nothing, for CPUs; for GPUs NVIDIA's driver 580 or newer"
                       : "the user-space part of the same driver (in a container: --gpus all)"});
    out.push_back({"gpu code", compiled.empty() ? "not asked" : "green",
                   compiled.empty() ? "this build has none" : "this build has " + compiled,
                   compiled.empty() ? "a build where nvcc is in PATH, to use GPUs" : ""});
    return;
  }
  const bool old = probe.cuda_version < 13000;
  out.push_back({"gpu driver", old ? "red" : "green",
                 probe.driver_version + ", runs CUDA up to " + std::to_string(probe.cuda_version / 1000) + "." +
                     std::to_string(probe.cuda_version % 1000 / 10),
                 old ? "driver 580 or newer: this program is built with CUDA 13" : ""});
  for (size_t i = 0; i < probe.gpus.size(); ++i) check_gpu(i, probe.gpus[i], compiled, out);
  if (probe.gpus.size() < 2) return;
  const bool all = probe.peer_pairs_reachable == probe.peer_pairs;
  out.push_back({"gpu peers", all ? "green" : "amber",
                 std::to_string(probe.peer_pairs_reachable) + " of " + std::to_string(probe.peer_pairs) +
                     " pairs reach each other's memory",
                 all ? "" : "iommu=pt on the kernel's command line, and ACS off on the PCIe bridges"});
  out.push_back({"nccl", probe.nccl_version.empty() ? "amber" : "green",
                 probe.nccl_version.empty() ? "libnccl.so.2 is not found" : probe.nccl_version,
                 probe.nccl_version.empty() ? "the package libnccl2, for several GPUs" : ""});
}

const char* worst_of(const Findings& findings) {
  const char* worst = "green";
  for (const Finding& f : findings) {
    if (std::string(f.verdict) == "red") return "red";
    if (std::string(f.verdict) == "amber") worst = "amber";
  }
  return worst;
}

void print(const Findings& findings, bool json) {
  if (json) {
    nlohmann::ordered_json out{{"verdict", worst_of(findings)}, {"checks", nlohmann::ordered_json::array()}};
    for (const Finding& f : findings)
      out["checks"].push_back({{"name", f.name}, {"verdict", f.verdict}, {"found", f.found}, {"fix", f.fix}});
    std::printf("%s\n", out.dump(1).c_str());
    return;
  }
  for (const Finding& f : findings) {
    std::printf("%-10s %-22s %s\n", f.verdict, f.name, f.found.c_str());
    if (!f.fix.empty()) std::printf("%-10s %-22s fix: %s\n", "", "", f.fix.c_str());
  }
}

}  // namespace

void add_doctor_command(CLI::App& app, CliContext& context, int& exit_code) {
  struct Command {
    std::string model{};
    bool json = false;
  };
  auto command = std::make_shared<Command>();
  CLI::App* sub =
      app.add_subcommand("doctor", "Look at this machine: driver, GPUs, memory, limits, disk; each with its fix");
  sub->add_option("model", command->model, "Also measure how fast this model's files are read");
  sub->add_flag("--json", command->json, "As JSON");
  sub->callback([command, &context, &exit_code] {
    std::filesystem::path folder;
    if (!command->model.empty()) {
      Result<ModelSource> source = resolve_model(command->model, context.hf_home);
      if (!source) {
        exit_code = report(source.error());
        return;
      }
      folder = source->folder;
    }
    Findings findings;
    check_cpu(findings);
    check_memory(findings);
    check_disk(folder, findings);
    check_gpus(findings);
    print(findings, command->json);
    exit_code = std::string(worst_of(findings)) == "red" ? 1 : 0;
  });
}

}  // namespace plumb
