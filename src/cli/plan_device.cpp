// --device: what a plan is made for.
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/json_file.h"
#include "cli/model_options.h"
#include "device/cuda_device.h"
#include "device/profiles.h"

namespace plumb {
namespace {

constexpr const char* kExample =
    R"({"name": "my card", "compute_capability": "12.0", "memory_bytes": 103079215104, "shared_bytes": 101376})";

Error bad_profile(const std::string& path, const std::string& why) {
  return {Code::Usage, path + ": is no device profile", why, {std::string("such as ") + kExample}};
}

Result<DeviceInfo> read_profile(const std::string& path) {
  PLUMB_TRY(const nlohmann::json file, read_json(path, {.depth = 4, .bytes = 1u << 16}));
  if (!file.is_object()) return bad_profile(path, "it is not a JSON object");
  for (const auto& [key, value] : file.items())
    if (key != "name" && key != "compute_capability" && key != "memory_bytes" && key != "shared_bytes")
      return bad_profile(path, "'" + key + "' is no part of one");
  const auto text = [&](const char* key) {
    return file.contains(key) && file[key].is_string() ? file[key].get<std::string>() : std::string();
  };
  const auto bytes = [&](const char* key) {
    return file.contains(key) && file[key].is_number_integer() ? file[key].get<int64_t>() : int64_t{0};
  };
  if (text("name").empty() || text("compute_capability").empty() || bytes("memory_bytes") <= 0 ||
      bytes("shared_bytes") <= 0)
    return bad_profile(path, "it needs a name, a compute_capability, memory_bytes and shared_bytes");
  return gpu_of(text("name"), text("compute_capability"), bytes("memory_bytes"), bytes("shared_bytes"));
}

Result<DeviceInfo> find_one(const std::string& name) {
  if (name == "cpu") return detect_cpu();
  if (name == "cuda" || name.starts_with("cuda:")) {
    int ordinal = 0;
    const char* end = name.data() + name.size();
    if (name != "cuda" && std::from_chars(name.data() + 5, end, ordinal).ptr != end)
      return Error{Code::Usage, "--device " + name + " names no device", "", {"cuda:0"}};
    PLUMB_TRY(CudaInfo found, find_cuda(ordinal));
    return std::move(found.device);
  }
  if (const DeviceInfo* profile = find_device_profile(name)) return *profile;
  if (name.find('/') != std::string::npos || name.ends_with(".json")) return read_profile(name);
  Error unknown{Code::Usage, "--device " + name + " is not known", "", {"cpu", "cuda", "cuda:N"}};
  for (std::string& known : device_profile_names()) unknown.works.push_back(std::move(known));
  unknown.works.emplace_back("FILE.json with a profile");
  return unknown;
}

}  // namespace

Result<DeviceInfo> find_planned_device(const std::string& list, ModelPlanOptions& options) {
  std::vector<std::string> names;
  std::istringstream in(list);
  for (std::string name; std::getline(in, name, ',');) names.push_back(name);
  if (names.empty()) return Error{Code::Usage, "--device names no device", "", {"--device cpu", "--device h200"}};
  const auto listed = static_cast<int>(names.size());
  if (listed > 1 && !options.sources.contains("tp")) {
    options.tp = listed;
    options.sources["tp"] = "--device " + list;
  }
  if (listed > 1 && listed != options.tp)
    return Error{Code::Usage,
                 "--device names " + std::to_string(listed) + " devices, --tp is " + std::to_string(options.tp),
                 "a list has one name for each rank",
                 {"--tp " + std::to_string(listed), "one name, for " + std::to_string(options.tp) + " of its kind"}};
  PLUMB_TRY(DeviceInfo device, find_one(names.front()));
  for (const std::string& name : names) {
    PLUMB_TRY(const DeviceInfo other, find_one(name));
    if (other.isas != device.isas)
      return Error{Code::Unsupported,
                   "--device " + names.front() + " and " + name + " in one plan",
                   "ranks compute the same bits where they share a result, so all must run the same kernels; " +
                       device.name + " and " + other.name + " do not",
                   {"devices of one kind"}};
    // Every rank holds as much as the smallest can.
    if (other.memory_bytes < device.memory_bytes) device = other;
  }
  return device;
}

}  // namespace plumb
