// The safetensors container: `u64 N | N bytes of JSON | data` (formats.md section 4). A header is checked by every rule
// before a byte of data is trusted; the data is mapped read-only and never copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace plumb {

// One entry of a header. `begin` and `end` are bytes from the start of the data section.
struct TensorInfo {
  std::string name{};
  DType dtype = DType::F32;
  std::vector<int64_t> shape{};  // rank 0: one element
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  int64_t elements() const;
  // "F8_E4M3 [2048, 384]", for messages.
  std::string type_string() const;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors{};              // in order of their offsets
  std::map<std::string, std::string> metadata{};  // "__metadata__"
  uint64_t data_begin = 0;                        // byte of the file where the data section starts: 8 + N
};

// Checks a whole file image of which the caller has the first bytes: `prefix` must hold at least min(file_size, 8 + N)
// bytes. `file` names the file in messages.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view prefix, uint64_t file_size, std::string_view file);

// A file mapped read-only. Move-only.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  ~SafetensorsFile();

  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // First byte of a tensor of this file.
  const std::byte* data(const TensorInfo& tensor) const { return base_ + header_.data_begin + tensor.begin; }
  const TensorInfo* find(std::string_view name) const;  // linear; nullptr if absent
  const std::filesystem::path& path() const { return path_; }
  uint64_t file_size() const { return size_; }

 private:
  SafetensorsFile() = default;
  std::filesystem::path path_{};
  SafetensorsHeader header_{};
  const std::byte* base_ = nullptr;
  uint64_t size_ = 0;
};

// Writes one file, streaming: the layout (names, types, shapes; offsets are computed) is given first, then each
// tensor's bytes in that order. The file appears under its name only when finish() succeeds; before that it is `path` +
// ".part", which is removed on any error and by the destructor.
class SafetensorsWriter {
 public:
  // `tensors` in the order of their data; `begin` and `end` need not be set.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                                          const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // Appends bytes of the data section; any split, as long as the sum is the sum of all tensors.
  Status write(const void* data, size_t bytes);
  Status finish();

 private:
  SafetensorsWriter() = default;
  Error failed(std::string_view doing);
  std::filesystem::path path_{};
  std::filesystem::path part_{};
  std::vector<TensorInfo> tensors_{};
  std::FILE* file_ = nullptr;
  uint64_t written_ = 0;
  uint64_t total_ = 0;
};

}  // namespace plumb
