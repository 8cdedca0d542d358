// Where tests find their data. Everything in the source tree is always there; checkpoints too large for it are looked
// for in the folder named by PLUMB_TEST_DATA, and a test that needs them is skipped, with the reason, when it is unset.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/source_dir.h"

namespace plumb::testing {

// tests/data/golden/<name>, e.g. "random/base/golden.safetensors".
inline std::string golden_path(const std::string& name) { return source_dir() + "/tests/data/golden/" + name; }

// models/<name>; the bundled checkpoint unless said otherwise.
inline std::string model_path(const std::string& name = "tiny-glm-dsa-nvfp4") {
  return source_dir() + "/models/" + name;
}

inline constexpr const char* kRandomModels[] = {
    "attention_bias", "base",          "indexer_pattern", "indexer_shared", "mlp_types", "n_group",
    "no_norm_topk",   "rope_v4_theta", "rope_v5_theta",   "rope_v5_yarn",   "tied"};

// PLUMB_TEST_DATA/<name>; empty when the variable is unset or names a folder without it.
inline std::string extra_data_path(const std::string& name) {
  const char* root = std::getenv("PLUMB_TEST_DATA");
  if (root == nullptr || *root == '\0') return "";
  const std::string path = std::string(root) + "/" + name;
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace plumb::testing

// std::string PATH = where NAME is under PLUMB_TEST_DATA, or the test is skipped.
#define PLUMB_REQUIRE_EXTRA_DATA(path, name)                        \
  const std::string path = ::plumb::testing::extra_data_path(name); \
  if (path.empty()) GTEST_SKIP() << (name) << " is not there: PLUMB_TEST_DATA names no folder that has it"
