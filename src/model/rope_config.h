// Rotary position frequencies: `default` and `yarn` (model.md sections 1.5 and 3.3).
#pragma once

#include <cstdint>
#include <vector>

namespace plumb {

enum class RopeType : uint8_t { Default, Yarn };

struct RopeSpec {
  RopeType type = RopeType::Default;
  double theta = 0;
  // YaRN only:
  double factor = 1;
  double original_max_position_embeddings = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;
  double mscale_all_dim = 0;
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

// inv_freq[i], i in [0, dim/2): each power, reciprocal and product rounded to float32 in the order of transformers, so
// that angle = float(position) * inv_freq[i] (a float32 product) follows it up to the last position.
std::vector<float> rope_inv_freq(const RopeSpec& rope, int dim);

// Multiplies cos and sin: get_mscale(s, mscale) / get_mscale(s, mscale_all_dim); 1 for `default`.
double rope_cos_sin_factor(const RopeSpec& rope);

// Multiplies the softmax scale: get_mscale(s, mscale_all_dim)^2; 1 for `default`.
double rope_softmax_factor(const RopeSpec& rope);

}  // namespace plumb
