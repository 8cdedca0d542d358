#include "guard/angle_watch.h"

#include <cmath>

namespace plumb {

AngleWatch::AngleWatch(const Plan& plan, const ModelConfig& config)
    : plan_(plan), config_(config), inv_freq_(rope_inv_freq(config.rope, config.qk_rope_head_dim)) {
  if (config.rope.type != RopeType::Default) return;
  for (size_t i = 0; i < inv_freq_.size(); ++i)
    inv_freq_[i] =
        static_cast<float>(std::pow(config.rope.theta, -2.0 * static_cast<double>(i) / config.qk_rope_head_dim));
}

void AngleWatch::before(const OpCall& call, Executor& executor) {
  if (call.kernel.contract.op != Op::Rope || !problem_.empty()) return;
  RopeArgs args = *static_cast<const RopeArgs*>(call.args);
  const auto half = static_cast<int64_t>(inv_freq_.size());
  std::vector<std::byte> cos, sin;
  const auto home = [&](const float*& angles, std::vector<std::byte>& storage) {
    const Tensor rows(const_cast<float*>(angles), DType::F32, {call.rows, half}, executor.memory().where);
    angles = executor.to_host(rows, storage).f32();
  };
  home(args.cos, cos);
  home(args.sin, sin);
  for (int64_t r = 0; r < call.rows && problem_.empty(); ++r) look(call, args, r);
}

void AngleWatch::look(const OpCall& call, const RopeArgs& args, int64_t r) {
  const int32_t row = call.origin.row(r);
  if (row >= rows_.rows || rows_.sequence[row] < 0) return;
  const double factor = rope_cos_sin_factor(config_.rope);
  for (size_t i = 0; i < inv_freq_.size(); ++i, ++angles_) {
    const double angle = static_cast<double>(rows_.positions[row]) * static_cast<double>(inv_freq_[i]);
    // Four roundings of the angle to float32, and one of the result.
    const double allowed = factor * ((1 + angle) * 0x1p-21 + (args.numerics.rope_bf16 ? 0x1p-8 : 0));
    const size_t at = static_cast<size_t>(r) * inv_freq_.size() + i;
    const double cos = static_cast<double>(args.cos[at]), sin = static_cast<double>(args.sin[at]);
    if (std::fabs(cos - factor * std::cos(angle)) <= allowed && std::fabs(sin - factor * std::sin(angle)) <= allowed)
      continue;
    site_ = plan_.sites[static_cast<size_t>(call.site)].decl.name;
    problem_ = site_ + ": pair " + std::to_string(i) + " of position " + std::to_string(rows_.positions[row]) +
               " is turned by cos " + std::to_string(cos) + ", the configuration's rope_theta gives " +
               std::to_string(factor * std::cos(angle));
    return;
  }
}

}  // namespace plumb
