// Writes a checkpoint folder from tensors that are computed on demand: sharded, parallel, memory bounded by a few
// chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace plumb {

class ThreadPool;

// One tensor of the output. `rows` divide its bytes evenly; fill() may be called for any row ranges that begin at a
// multiple of `row_step`, by several threads at once.
struct TensorProducer {
  TensorInfo info{};
  int64_t rows = 1;
  int64_t row_step = 1;
  std::function<void(int64_t first, int64_t count, std::byte* out)> fill{};
};

struct ShardedWriteOptions {
  std::filesystem::path folder{};  // made if absent; must not hold safetensors files
  uint64_t max_shard_bytes = 5'000'000'000;
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress{};
};

// Tensors keep their order over the shards; within one, wider element types come first, so that every tensor is aligned
// for its type. One file: model.safetensors; several: model-00001-of-0000N.safetensors and the index, which is written
// last.
Status write_sharded(std::vector<TensorProducer> tensors, const ShardedWriteOptions& options, ThreadPool& pool);

// Tokenizer, chat template and generation settings of a model folder, as far as they are there.
Status copy_side_files(const std::filesystem::path& from, const std::filesystem::path& to);

// Order of hub files: embedding, layers by number, the rest; by name within.
bool checkpoint_order(std::string_view a, std::string_view b);

}  // namespace plumb
