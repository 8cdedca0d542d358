#include "model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace plumb {
namespace {

double get_mscale(double scale, double mscale) { return scale <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0; }

// Dimension at which a wavelength makes `rotations` turns over the original context.
double correction_dim(const RopeSpec& rope, int dim, double rotations) {
  return dim * std::log(rope.original_max_position_embeddings / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.theta));
}

// theta^(2i/dim): exponent and power each rounded once to float32. The power is taken in float64, so that it is the
// correctly rounded one on every machine (powf differs between libraries in the last bit).
float power(const RopeSpec& rope, int i, int dim) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
  return static_cast<float>(
      std::pow(static_cast<double>(static_cast<float>(rope.theta)), static_cast<double>(exponent)));
}

}  // namespace

std::vector<float> rope_inv_freq(const RopeSpec& rope, int dim) {
  const int half = dim / 2;
  std::vector<float> inv_freq(static_cast<size_t>(half));
  for (int i = 0; i < half; ++i) inv_freq[static_cast<size_t>(i)] = 1.0f / power(rope, i, dim);
  if (rope.type == RopeType::Default) return inv_freq;

  const double low = std::max(std::floor(correction_dim(rope, dim, rope.beta_fast)), 0.0);
  double high = std::min(std::ceil(correction_dim(rope, dim, rope.beta_slow)), static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const float factor = static_cast<float>(rope.factor);
  for (int i = 0; i < half; ++i) {
    float& inv = inv_freq[static_cast<size_t>(i)];
    const float interpolated = 1.0f / (factor * power(rope, i, dim));
    const float slope = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1.0f - std::clamp(slope, 0.0f, 1.0f);
    inv = interpolated * (1.0f - kept) + inv * kept;
  }
  return inv_freq;
}

double rope_cos_sin_factor(const RopeSpec& rope) {
  if (rope.type == RopeType::Default) return 1.0;
  return get_mscale(rope.factor, rope.mscale) / get_mscale(rope.factor, rope.mscale_all_dim);
}

double rope_softmax_factor(const RopeSpec& rope) {
  if (rope.type == RopeType::Default) return 1.0;
  const double mscale = get_mscale(rope.factor, rope.mscale_all_dim);
  return mscale * mscale;
}

}  // namespace plumb
