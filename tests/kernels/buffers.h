// Memory of a contract test: fenced, deliberately aligned to no more than its element, and filled by pattern.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "case_memory.h"

namespace plumb::testing {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr size_t kFence = 0;  // the sanitizer's own fences catch reads as well
#else
inline constexpr size_t kFence = 256;
#endif
inline constexpr uint8_t kFenceByte = 0xff;  // NaN in every float format, -1 as an index: reading it shows

struct FreeCaseMemory {
  size_t bytes = 0;
  void operator()(std::byte* p) const { free_case_memory(p, bytes); }
};

class Buffer {
 public:
  Buffer() = default;
  // `bytes` of memory that begin `skew` past a multiple of 64.
  explicit Buffer(size_t bytes, size_t skew = 0) : bytes_(bytes), before_(round_up(kFence) + skew) {
    size_ = round_up_to(before_ + bytes + kFence, kFence == 0 ? 1 : 64);
    memory_ = Memory(static_cast<std::byte*>(allocate_case_memory(size_)), FreeCaseMemory{size_});
    std::memset(memory_.get(), kFenceByte, size_);
  }

  std::byte* data() { return memory_.get() + before_; }
  const std::byte* data() const { return memory_.get() + before_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data());
  }
  size_t bytes() const { return bytes_; }
  void fill(uint8_t byte) { std::memset(data(), byte, bytes_); }
  void copy_from(const Buffer& other) { std::memcpy(data(), other.data(), bytes_); }
  bool same_as(const Buffer& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data(), other.data(), bytes_) == 0;
  }

  // False when somebody wrote outside.
  bool fences_whole() const {
    const auto whole = [](std::byte b) { return b == std::byte{kFenceByte}; };
    return std::all_of(memory_.get(), memory_.get() + before_, whole) &&
           std::all_of(memory_.get() + before_ + bytes_, memory_.get() + size_, whole);
  }

 private:
  using Memory = std::unique_ptr<std::byte[], FreeCaseMemory>;
  static constexpr size_t round_up_to(size_t value, size_t of) { return (value + of - 1) / of * of; }
  static constexpr size_t round_up(size_t value) { return round_up_to(value, 64); }

  size_t bytes_ = 0;
  size_t before_ = 0;
  size_t size_ = 0;
  Memory memory_{};
};

}  // namespace plumb::testing
