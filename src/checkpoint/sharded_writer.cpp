#include "checkpoint/sharded_writer.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/thread_pool.h"
#include "checkpoint/json_file.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kChunkBytes = 2u << 20;    // what one worker computes at a time
constexpr uint64_t kWindowBytes = 64u << 20;  // computed, then written

uint64_t output_bytes(const TensorInfo& info) {
  return static_cast<uint64_t>(info.elements()) * static_cast<uint64_t>(bits(info.dtype)) / 8;
}

struct Chunk {
  const TensorProducer* tensor = nullptr;
  int64_t first = 0, count = 0;
  uint64_t offset = 0, bytes = 0;  // within the window
};

// Computes chunks in parallel, a window at a time, and writes each window in order.
class WindowWriter {
 public:
  WindowWriter(SafetensorsWriter& writer, ThreadPool& pool, std::function<void(uint64_t)> written)
      : writer_(writer), pool_(pool), written_(std::move(written)) {}

  Status add(const TensorProducer& tensor) {
    const uint64_t total = output_bytes(tensor.info);
    if (total == 0) return Ok{};
    const uint64_t row_bytes = total / static_cast<uint64_t>(tensor.rows);
    PLUMB_CHECK(row_bytes * static_cast<uint64_t>(tensor.rows) == total, "rows divide a tensor's bytes");
    const uint64_t steps = std::max<uint64_t>(kChunkBytes / (row_bytes * static_cast<uint64_t>(tensor.row_step)), 1);
    const int64_t each = static_cast<int64_t>(steps) * tensor.row_step;
    for (int64_t first = 0; first < tensor.rows; first += each) {
      const int64_t count = std::min(each, tensor.rows - first);
      const uint64_t bytes = row_bytes * static_cast<uint64_t>(count);
      if (used_ > 0 && used_ + bytes > kWindowBytes) PLUMB_TRY_STATUS(flush());
      chunks_.push_back({&tensor, first, count, used_, bytes});
      used_ += bytes;
    }
    return Ok{};
  }

  Status flush() {
    if (buffer_.size() < used_) buffer_.resize(used_);
    pool_.parallel_parts(static_cast<int>(chunks_.size()), [this](int part, int) {
      const Chunk& chunk = chunks_[static_cast<size_t>(part)];
      chunk.tensor->fill(chunk.first, chunk.count, buffer_.data() + chunk.offset);
    });
    PLUMB_TRY_STATUS(writer_.write(buffer_.data(), used_));
    written_(used_);
    chunks_.clear();
    used_ = 0;
    return Ok{};
  }

 private:
  SafetensorsWriter& writer_;
  ThreadPool& pool_;
  std::function<void(uint64_t)> written_;
  std::vector<Chunk> chunks_{};
  std::vector<std::byte> buffer_{};
  uint64_t used_ = 0;
};

// -1 for the embedding, the number for layers, the largest for the rest.
int layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (name.starts_with("model.embed_tokens")) return -1;
  int layer = std::numeric_limits<int>::max();
  if (name.starts_with(kLayers)) std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

std::vector<std::vector<TensorProducer>> into_shards(std::vector<TensorProducer> tensors, uint64_t max_bytes) {
  std::vector<std::vector<TensorProducer>> shards(1);
  uint64_t size = 0;
  for (TensorProducer& tensor : tensors) {
    const uint64_t bytes = output_bytes(tensor.info);
    if (size > 0 && size + bytes > max_bytes) {
      shards.emplace_back();
      size = 0;
    }
    size += bytes;
    shards.back().push_back(std::move(tensor));
  }
  for (auto& shard : shards) {
    std::stable_sort(shard.begin(), shard.end(),
                     [](const auto& a, const auto& b) { return bits(a.info.dtype) > bits(b.info.dtype); });
  }
  return shards;
}

Status make_empty_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Error{Code::Environment, folder.string() + ": cannot create the folder", error.message(), {}};
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") {
      return Error{Code::Usage,
                   folder.string() + ": already holds " + it->path().filename().string(),
                   "a checkpoint is not written over another",
                   {"an empty folder"}};
    }
  }
  return Ok{};
}

}  // namespace

bool checkpoint_order(std::string_view a, std::string_view b) {
  const int layer_a = layer_of(a), layer_b = layer_of(b);
  return layer_a != layer_b ? layer_a < layer_b : a < b;
}

Status write_sharded(std::vector<TensorProducer> tensors, const ShardedWriteOptions& options, ThreadPool& pool) {
  PLUMB_TRY_STATUS(make_empty_folder(options.folder));
  uint64_t total = 0, done = 0;
  for (const TensorProducer& tensor : tensors) total += output_bytes(tensor.info);
  const auto shards = into_shards(std::move(tensors), options.max_shard_bytes);
  nlohmann::json weight_map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? std::string("model.safetensors")
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<TensorInfo> layout;
    for (const TensorProducer& tensor : shards[i]) {
      layout.push_back(tensor.info);
      weight_map[tensor.info.name] = name;
    }
    PLUMB_TRY(SafetensorsWriter writer, SafetensorsWriter::create(options.folder / name, layout, {{"format", "pt"}}));
    WindowWriter window(writer, pool, [&](uint64_t bytes) {
      done += bytes;
      if (options.progress) options.progress(done, total);
    });
    for (const TensorProducer& tensor : shards[i]) PLUMB_TRY_STATUS(window.add(tensor));
    PLUMB_TRY_STATUS(window.flush());
    PLUMB_TRY_STATUS(writer.finish());
  }
  if (shards.size() == 1) return Ok{};
  const nlohmann::json index{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  return write_text_file(options.folder / "model.safetensors.index.json", index.dump(2));
}

Status copy_side_files(const fs::path& from, const fs::path& to) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
                           "special_tokens_map.json", "added_tokens.json"}) {
    std::error_code error;
    if (!fs::exists(from / name, error)) continue;
    fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing, error);
    if (error) return Error{Code::Environment, (to / name).string() + ": cannot copy", error.message(), {}};
    // A source in a read-only cache must not make the copy read-only.
    fs::permissions(to / name, fs::perms::owner_write, fs::perm_options::add, error);
  }
  return Ok{};
}

}  // namespace plumb
