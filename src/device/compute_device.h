// What a model runs on: this machine's CPU with a pool of workers, or one CUDA device.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "device/isa.h"
#include "device/memory.h"

namespace plumb {

struct ComputeDevice {
  DeviceInfo info{};
  Memory memory{};
  Stream stream{};  // without a workspace
  std::shared_ptr<void> owner{};
};

// backend "cuda": the CUDA device of that ordinal (Unsupported in builds without CUDA, Environment or Usage where there
// is no such device); any other: the CPU. `pool` must outlive what runs on it.
Result<ComputeDevice> open_device(std::string_view backend, int cuda_ordinal, ThreadPool& pool);

}  // namespace plumb
