#include "device/profiles.h"

#include <array>
#include <utility>

namespace plumb {

DeviceInfo gpu_of(std::string name, std::string_view compute_capability, int64_t memory_bytes, int64_t shared_bytes) {
  DeviceInfo device{.name = std::move(name), .memory_bytes = memory_bytes, .memory_bound = "the card"};
  device.shared_bytes = shared_bytes;
  constexpr std::array<std::pair<std::string_view, Isa>, 3> kArchitectures{
      {{"9.0", Isa::Sm90a}, {"10.0", Isa::Sm100a}, {"12.0", Isa::Sm120a}}};
  for (const auto& [capability, isa] : kArchitectures)
    if (capability == compute_capability) device.isas = {isa, Isa::CudaPortable};
  return device;
}

namespace {

struct Profile {
  std::string name;
  DeviceInfo device;
};

const std::vector<Profile>& profiles() {
  // Memory as the driver reports it (MiB), shared memory as the architecture allows a block of it.
  constexpr int64_t kMiB = int64_t{1} << 20;
  static const std::vector<Profile> kProfiles{
      {"h200", gpu_of("NVIDIA H200", "9.0", 143771 * kMiB, 232448)},
      {"h100", gpu_of("NVIDIA H100 80GB", "9.0", 81559 * kMiB, 232448)},
      {"b200", gpu_of("NVIDIA B200", "10.0", 183359 * kMiB, 232448)},
      {"rtx-pro-6000", gpu_of("NVIDIA RTX PRO 6000 Blackwell", "12.0", 97887 * kMiB, 101376)},
      {"rtx-5090", gpu_of("NVIDIA GeForce RTX 5090", "12.0", 32607 * kMiB, 101376)},
  };
  return kProfiles;
}

}  // namespace

const DeviceInfo* find_device_profile(std::string_view name) {
  for (const Profile& profile : profiles())
    if (profile.name == name) return &profile.device;
  return nullptr;
}

std::vector<std::string> device_profile_names() {
  std::vector<std::string> names;
  for (const Profile& profile : profiles()) names.push_back(profile.name);
  return names;
}

}  // namespace plumb
