// Byte-pair encoding of one pre-tokenised piece (model.md section 5).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace plumb {

// Lets a map keyed by strings be searched by views.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
using IdByText = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

class Bpe {
 public:
  struct Merge {
    int32_t left = 0;
    int32_t right = 0;
    int32_t merged = 0;
  };
  // `of_bytes`: raw bytes of a vocabulary entry -> id. Merges in rank order; of equal pairs the last one counts.
  Bpe(IdByText of_bytes, const std::vector<Merge>& merges, bool ignore_merges);

  // O(n log n). A byte without an id of its own yields nothing, as in Hugging Face's tokenizers.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Target {
    int32_t rank = 0;
    int32_t merged = 0;
  };
  static uint64_t pair_key(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
  }
  struct KeyHash {
    size_t operator()(uint64_t key) const {
      key *= 0x9E3779B97F4A7C15ull;
      return static_cast<size_t>(key ^ (key >> 29));
    }
  };

  IdByText of_bytes_;
  std::array<int32_t, 256> byte_id_{};
  std::unordered_map<uint64_t, Target, KeyHash> merges_;
  bool ignore_merges_ = false;
};

}  // namespace plumb
