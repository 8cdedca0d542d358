#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "checkpoint/json_file.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kListed = 12;  // names in a message; the rest is counted

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kListed; ++i) {
    if (i != 0) text += ", ";
    text += names[i];
  }
  if (names.size() > kListed) text += " and " + std::to_string(names.size() - kListed) + " more";
  return text;
}

// An index may only name files beside it (formats.md 4.3).
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 && name.ends_with(".safetensors") &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

using WeightIndex = std::map<std::string, std::string>;  // tensor -> file

Result<WeightIndex> read_index(const fs::path& path) {
  PLUMB_TRY(const json index, read_json(path));
  const auto wrong = [&](std::string what) {
    return Error{Code::Corrupt, path.string() + ": " + std::move(what), "", {"download the file again"}};
  };
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return wrong("has no 'weight_map' object");
  }
  WeightIndex map;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) return wrong("maps '" + tensor + "' to " + file.dump() + ", not to a file name");
    const std::string name = file.get<std::string>();
    if (!is_plain_file_name(name)) {
      return wrong("maps '" + tensor + "' to " + json(name).dump(-1, ' ', true) +
                   ", not a plain .safetensors file name");
    }
    map.emplace(tensor, name);
  }
  if (map.empty()) return wrong("its 'weight_map' is empty");
  return map;
}

// Tensors of a language model, as opposed to whatever else somebody put into the folder.
bool holds_model_tensors(const SafetensorsFile& file) {
  return std::any_of(file.tensors().begin(), file.tensors().end(), [](const TensorInfo& tensor) {
    return tensor.name.starts_with("model.") || tensor.name.starts_with("lm_head.");
  });
}

std::vector<std::string> safetensors_files(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Error missing_shards(const fs::path& folder, const std::vector<std::string>& missing, size_t wanted) {
  return Error{Code::Corrupt,
               folder.string() + ": " + std::to_string(missing.size()) + " of the " + std::to_string(wanted) +
                   " files that model.safetensors.index.json names are missing: " + join(missing),
               "the model is incomplete",
               {"finish the download"}};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const fs::path& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  checkpoint.has_data_ = true;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return Error{Code::NotFound, folder.string() + ": is not a folder", "", {}};
  }
  const std::vector<std::string> present = safetensors_files(folder);
  const bool indexed = fs::exists(folder / "model.safetensors.index.json", error);
  WeightIndex index;
  std::set<std::string> wanted{"model.safetensors"};
  if (indexed) {
    PLUMB_TRY(index, read_index(folder / "model.safetensors.index.json"));
    wanted.clear();
    for (const auto& [tensor, file] : index) wanted.insert(file);
    std::vector<std::string> missing;
    for (const std::string& file : wanted) {
      if (!fs::exists(folder / file, error)) missing.push_back(file);
    }
    if (!missing.empty()) return missing_shards(folder, missing, wanted.size());
  } else if (!fs::exists(folder / "model.safetensors", error)) {
    return Error{present.empty() ? Code::NotFound : Code::Corrupt,
                 folder.string() + ": has neither model.safetensors.index.json nor model.safetensors",
                 present.empty() ? "there are no .safetensors files" : "there are only: " + join(present),
                 {}};
  }
  for (const std::string& file : wanted) {
    PLUMB_TRY(SafetensorsFile shard, SafetensorsFile::open(folder / file));
    PLUMB_TRY_STATUS(checkpoint.add_shard(std::move(shard)));
  }
  for (const std::string& file : present) {
    if (wanted.contains(file)) continue;
    PLUMB_TRY(SafetensorsFile extra, SafetensorsFile::open(folder / file));
    if (!holds_model_tensors(extra)) continue;
    checkpoint.warnings_.push_back(file + ": holds model tensors and joins, though nothing names it");
    PLUMB_TRY_STATUS(checkpoint.add_shard(std::move(extra)));
  }
  checkpoint.seal();
  if (indexed) PLUMB_TRY_STATUS(checkpoint.compare_with_index(index));
  return checkpoint;
}

// Every mapped tensor lies in the file the index names; others are told.
Status Checkpoint::compare_with_index(const WeightIndex& index) {
  std::vector<std::string> absent;
  for (const auto& [tensor, file] : index) {
    const CheckpointTensor* found = find(tensor);
    if (found == nullptr || shard_names_[static_cast<size_t>(found->shard)] != file) {
      absent.push_back("'" + tensor + "' (" + file + ")");
    }
  }
  if (!absent.empty()) {
    return Error{Code::Corrupt,
                 folder_.string() + ": " + std::to_string(absent.size()) +
                     " tensors are not in the file that model.safetensors.index.json names: " + join(absent),
                 "index and files do not belong together",
                 {"download the model again"}};
  }
  std::map<std::string, std::vector<std::string>> outside;
  for (CheckpointTensor& tensor : tensors_) {
    tensor.in_index = index.contains(tensor.info.name);
    if (!tensor.in_index) {
      outside[shard_names_[static_cast<size_t>(tensor.shard)]].push_back(tensor.info.name);
    }
  }
  for (const auto& [file, names] : outside) {
    warnings_.push_back(file + ": " + std::to_string(names.size()) +
                        " tensors are not in model.safetensors.index.json: " + join(names));
  }
  return Ok{};
}

Result<Checkpoint> Checkpoint::from_headers(std::vector<TensorInfo> tensors) {
  Checkpoint checkpoint;
  checkpoint.shard_names_.emplace_back("(headers only)");
  checkpoint.tensors_.reserve(tensors.size());
  for (TensorInfo& info : tensors)
    if (CheckpointTensor tensor{std::move(info), nullptr, 0}; !checkpoint.add(std::move(tensor)))
      // NOLINTNEXTLINE(bugprone-use-after-move): what is refused is not moved from
      return Error{Code::Corrupt, "tensor '" + tensor.info.name + "' is given twice", "", {}};
  checkpoint.seal();
  return checkpoint;
}

// Where a name is, or the free slot where it would be.
size_t Checkpoint::slot_of(std::string_view name) const {
  const size_t mask = slots_.size() - 1;
  size_t at = std::hash<std::string_view>{}(name)&mask;
  while (slots_[at] != 0 && tensors_[slots_[at] - 1].info.name != name) at = (at + 1) & mask;
  return at;
}

// Takes the tensor only when its name is new.
bool Checkpoint::add(CheckpointTensor&& tensor) {
  if (2 * (tensors_.size() + 1) > slots_.size()) {  // at most half full
    slots_.assign(std::bit_ceil(4 * std::max(tensors_.capacity(), size_t{16})), 0);
    for (uint32_t i = 0; i < tensors_.size(); ++i) slots_[slot_of(tensors_[i].info.name)] = i + 1;
  }
  uint32_t& slot = slots_[slot_of(tensor.info.name)];
  if (slot != 0) return false;
  total_bytes_ += tensor.info.bytes();
  tensors_.push_back(std::move(tensor));
  slot = static_cast<uint32_t>(tensors_.size());
  return true;
}

Status Checkpoint::add_shard(SafetensorsFile file) {
  const int shard = static_cast<int>(shard_names_.size());
  const std::string name = file.path().filename().string();
  std::vector<std::string> twice;
  std::string other;
  for (const TensorInfo& info : file.tensors()) {
    if (add(CheckpointTensor{info, file.data(info), shard})) continue;
    twice.push_back(info.name);
    other = shard_names_[static_cast<size_t>(find(info.name)->shard)];
  }
  if (!twice.empty()) {
    return Error{Code::Corrupt,
                 folder_.string() + ": " + std::to_string(twice.size()) + " tensors are in both " + other + " and " +
                     name + ": " + join(twice),
                 "which of them counts cannot be known",
                 {"remove the file that does not belong to the model"}};
  }
  shard_names_.push_back(name);
  files_.push_back(std::move(file));
  return Ok{};
}

// A sum, so that the tensors' order plays no part.
void Checkpoint::seal() {
  uint64_t sum = 0;
  for (const CheckpointTensor& tensor : tensors_) {
    const TensorInfo& info = tensor.info;
    Hash64 hasher;
    hasher.add(info.name);
    hasher.add(dtype_name(info.dtype));
    hasher.add(info.shape.size());
    for (const int64_t extent : info.shape) hasher.add(static_cast<uint64_t>(extent));
    hasher.add(info.begin);
    hasher.add(info.end);
    sum += hasher.value();
  }
  Hash64 hasher;
  hasher.add(sum);
  for (const SafetensorsFile& file : files_) {
    hasher.add(file.path().filename().string());
    hasher.add(file.file_size());
  }
  identity_hash_ = hasher.value();
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const uint32_t number = slots_.empty() ? 0 : slots_[slot_of(name)];
  return number == 0 ? nullptr : &tensors_[number - 1];
}

}  // namespace plumb
