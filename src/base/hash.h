// A 64-bit hash for identities (plans, checkpoints, files): FNV-1a, stable across machines and builds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plumb {

class Hash64 {
 public:
  Hash64& add(std::string_view bytes) {
    for (const char c : bytes) mix(static_cast<unsigned char>(c));
    mix(0xffu);  // so that "ab","c" and "a","bc" differ
    return *this;
  }
  Hash64& add(uint64_t value) {
    for (int i = 0; i < 8; ++i) mix(static_cast<unsigned char>(value >> (8 * i)));
    return *this;
  }
  uint64_t value() const { return state_; }
  std::string hex() const {
    std::string text(16, '0');
    for (int i = 0; i < 16; ++i) text[static_cast<size_t>(i)] = "0123456789abcdef"[(state_ >> (60 - 4 * i)) & 15u];
    return text;
  }

 private:
  void mix(unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3ull; }
  uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace plumb
