#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/mapping_guard.h"

namespace plumb {

int64_t TensorInfo::elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

std::string TensorInfo::type_string() const {
  std::string text = std::string(dtype_name(dtype)) + " [";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not hold us up
  if (fd < 0) {
    const int code = errno;
    return Error{
        code == ENOENT ? Code::NotFound : Code::Environment, path.string() + ": cannot open", std::strerror(code), {}};
  }
  struct stat facts {};
  if (::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    ::close(fd);
    return Error{Code::Corrupt, path.string() + ": is not a regular file", "", {}};
  }
  SafetensorsFile file;
  file.path_ = path;
  file.size_ = static_cast<uint64_t>(facts.st_size);
  if (file.size_ < 8) {
    ::close(fd);
    return parse_safetensors_header("", file.size_, path.string()).error();
  }
  void* mapped = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
  const int code = errno;
  ::close(fd);
  if (mapped == MAP_FAILED) {
    return Error{Code::Environment,
                 path.string() + ": cannot map " + std::to_string(file.size_) + " bytes",
                 std::strerror(code),
                 {}};
  }
  file.base_ = static_cast<const std::byte*>(mapped);
  watch_mapping(mapped, file.size_, path);
  const std::string_view image(static_cast<const char*>(mapped), file.size_);
  PLUMB_TRY(file.header_, parse_safetensors_header(image, file.size_, path.string()));
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      header_(std::move(other.header_)),
      base_(std::exchange(other.base_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(header_, other.header_);
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (base_ == nullptr) return;
  unwatch_mapping(base_);
  ::munmap(const_cast<std::byte*>(base_), size_);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::find_if(header_.tensors.begin(), header_.tensors.end(),
                               [&](const TensorInfo& tensor) { return tensor.name == name; });
  return it == header_.tensors.end() ? nullptr : &*it;
}

}  // namespace plumb
