// Input values of contract tests: every pattern that is dangerous for some algorithm, from a seed.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "buffers.h"
#include "ops/kernel.h"
#include "ops/weight.h"

namespace plumb::testing {

enum class Values { Normal, Zeros, Denormals, Large, Outlier };
inline constexpr Values kAllValues[] = {Values::Normal, Values::Zeros, Values::Denormals, Values::Large,
                                        Values::Outlier};
std::string to_string(Values values);

using Rng = std::mt19937_64;

void fill_values(float* out, int64_t count, Values values, Rng& rng);

// A weight with everything it points to. `prepare` re-arranges it for a kernel that reads another layout.
class TestWeight {
 public:
  TestWeight(const Format& format, int64_t n, int64_t k, Values values, Rng& rng);
  TestWeight(TestWeight&&) = default;
  TestWeight& operator=(TestWeight&&) = default;

  void add_bias(Rng& rng);
  // False when the registry has no conversion.
  bool prepare(const Registry& registry, Layout layout);
  const Weight& get() const { return weight_; }
  Weight& mutable_get() { return weight_; }
  size_t prepared_bytes() const { return prepared_.bytes(); }
  Buffer& data() { return data_; }
  bool whole() const {
    return data_.fences_whole() && scale_.fences_whole() && bias_.fences_whole() && prepared_.fences_whole();
  }

 private:
  Buffer data_{};
  Buffer scale_{};
  Buffer bias_{0};
  Buffer prepared_{0};
  Weight weight_{};
};

}  // namespace plumb::testing
