// Checkpoints made from others by a recipe (tests/data/golden/variants/recipes.json, tools/golden/variants.py).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace plumb::testing {

// A folder that goes away with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_{};
};

// One tensor of a checkpoint in memory.
struct EditableTensor {
  TensorInfo info{};
  std::vector<std::byte> bytes{};
};

struct EditableCheckpoint {
  std::vector<EditableTensor> tensors{};

  explicit EditableCheckpoint(const std::string& folder);  // config.json and all of its tensors
  ~EditableCheckpoint();
  nlohmann::json& config() { return *config_; }
  EditableTensor* find(const std::string& name);
  void write(const std::string& folder) const;
  void apply(const nlohmann::json& recipe);

 private:
  void edit(const nlohmann::json& step);
  std::unique_ptr<nlohmann::json> config_;
};

}  // namespace plumb::testing
