#include "cli/bench_load.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "checkpoint/model_source.h"
#include "device/compute_device.h"
#include "device/host_memory.h"
#include "kernels/cpu/probe.h"
#include "model/loaded_model.h"

namespace plumb {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Copies that much mapped, warm checkpoint into fresh memory, as loading does: the same faults, the same reads.
Result<double> copy_seconds(const OpenedModel& model, ThreadPool& pool) {
  PLUMB_TRY(const std::shared_ptr<std::byte> to,
            allocate_host(model.checkpoint->total_bytes(), "the copy to compare with"));
  const auto begin = std::chrono::steady_clock::now();
  size_t at = 0;
  for (const CheckpointTensor& tensor : model.checkpoint->tensors()) {
    cpu::copy_all(to.get() + at, tensor.data, static_cast<size_t>(tensor.info.bytes()), pool);
    at += static_cast<size_t>(tensor.info.bytes());
  }
  return seconds_since(begin);
}

// Memory of this process that is no file's: weights re-arranged, but not the checkpoint's pages in the page cache.
double anonymous_gigabytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (double kibibytes = 0; word == "RssAnon:" && status >> kibibytes) return kibibytes * 1024 / 1e9;
  }
  return 0;
}

}  // namespace

Status bench_load(BenchLoadOptions& options, const CliContext& context) {
  PLUMB_TRY_STATUS(finish_model_options(options.model, context));
  PLUMB_TRY(const ModelSource source, resolve_model(options.model.model, context.hf_home));
  const Registry registry = make_registry();
  ThreadPool pool(options.model.threads);
  for (int i = 0; i < options.repeats; ++i) {
    PLUMB_TRY(const OpenedModel fresh, open_model(source.folder));
    PLUMB_TRY(const double copy, copy_seconds(fresh, pool));
    PLUMB_TRY(ComputeDevice device, open_device(options.model.plan.backend, 0, pool));
    LoadModelOptions load{.device = device.info, .plan = options.model.plan};
    load.load.memory = device.memory;
    load.load.stream = &device.stream;
    load.load.check_values = false;
    const auto begin = std::chrono::steady_clock::now();
    PLUMB_TRY(const std::unique_ptr<LoadedModel> model, load_model(source.folder, registry, pool, load));
    const double seconds = seconds_since(begin);
    const double gigabytes = static_cast<double>(fresh.checkpoint->total_bytes()) / 1e9;
    std::printf(
        "load %.2f GB: %.2f s (%.2f GB/s), of which %.2f GB re-arranged; copying the same bytes %.2f s: %.0f %%; "
        "memory besides the page cache %.2f GB\n",
        gigabytes, seconds, gigabytes / seconds, static_cast<double>(model->weights.prepared_bytes()) / 1e9, copy,
        copy / seconds * 100, anonymous_gigabytes());
  }
  return Ok{};
}

}  // namespace plumb
