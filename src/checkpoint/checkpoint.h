// A model's tensors: one or several safetensors files of a folder seen as one set of names (formats.md section 4.3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace plumb {

struct CheckpointTensor {
  TensorInfo info{};
  const std::byte* data = nullptr;  // mapped bytes, any alignment; nullptr in a header-only checkpoint
  int shard = 0;                    // index into Checkpoint::shard_names()
  bool in_index = true;             // false: the index does not list it (mtp.safetensors and the like)
};

// Immutable once open; pointers to its tensors stay valid as long as it lives, also when it is moved.
class Checkpoint {
 public:
  // `model.safetensors.index.json` and its shards, else `model.safetensors`; further *.safetensors files of the folder
  // that hold model tensors (such as mtp.safetensors) join with a warning.
  static Result<Checkpoint> open(const std::filesystem::path& folder);
  // Headers without data, for planning a model that is not here. Names must differ.
  static Result<Checkpoint> from_headers(std::vector<TensorInfo> tensors);
  Checkpoint(Checkpoint&&) noexcept = default;
  Checkpoint& operator=(Checkpoint&&) noexcept = default;

  const CheckpointTensor* find(std::string_view name) const;  // nullptr if absent
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  const std::vector<std::string>& shard_names() const { return shard_names_; }
  const std::filesystem::path& folder() const { return folder_; }
  bool has_data() const { return has_data_; }
  uint64_t total_bytes() const { return total_bytes_; }  // of tensor data
  // Names, shapes, types, offsets and file sizes; not the data. Part of the plan's fingerprint.
  uint64_t identity_hash() const { return identity_hash_; }
  // Things to tell the user: tensors outside the index, extra files.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Checkpoint() = default;
  Status add_shard(SafetensorsFile file);
  Status compare_with_index(const std::map<std::string, std::string>& index);
  bool add(CheckpointTensor&& tensor);  // false: its name is known
  size_t slot_of(std::string_view name) const;
  void seal();
  std::filesystem::path folder_{};
  std::vector<SafetensorsFile> files_{};
  std::vector<std::string> shard_names_{};
  std::vector<CheckpointTensor> tensors_{};
  // Hash table of names: number of a tensor in tensors_ plus one, 0: free. Large models have 300,000 names, so they
  // are neither copied nor sorted.
  std::vector<uint32_t> slots_{};
  std::vector<std::string> warnings_{};
  uint64_t total_bytes_ = 0;
  uint64_t identity_hash_ = 0;
  bool has_data_ = false;
};

}  // namespace plumb
