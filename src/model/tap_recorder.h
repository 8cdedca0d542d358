// Keeps intermediates by name. Calls with the same name (steps, row tiles) append rows.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ops/executor.h"
#include "tensor/tensor.h"

namespace plumb {

class TapRecorder {
 public:
  // [rows, columns]; rows shorter than the longest are filled up: floats with -inf, integers with -1.
  struct Entry {
    bool integer = false;
    int64_t rows = 0, columns = 0;
    std::vector<float> floats{};
    std::vector<int32_t> ints{};
  };

  // `wanted`: names to keep, "*" for all; a trailing part counts as well ("kv_latent" keeps every layer's).
  explicit TapRecorder(std::vector<std::string> wanted) : wanted_(std::move(wanted)) {}
  // Records what the executor runs until it is told otherwise; the recorder must live that long.
  void attach(Executor& executor);
  void record(std::string_view name, const Tensor& value);
  bool wants(std::string_view name) const;
  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  const Entry* find(std::string_view name) const;
  void clear() { entries_.clear(); }

 private:
  std::vector<std::string> wanted_;
  std::map<std::string, Entry, std::less<>> entries_{};
};

}  // namespace plumb
