// What a device has, for plans of machines that are not here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/isa.h"

namespace plumb {

// "h200", "h100", "b200", "rtx-pro-6000", "rtx-5090". Null: no such profile.
const DeviceInfo* find_device_profile(std::string_view name);
std::vector<std::string> device_profile_names();

// A GPU of a compute capability ("9.0", "12.0", ...): the architecture kernels must name to run there. Capabilities
// without kernels of their own give a device that has none.
DeviceInfo gpu_of(std::string name, std::string_view compute_capability, int64_t memory_bytes, int64_t shared_bytes);

}  // namespace plumb
