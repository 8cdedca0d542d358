#include "engine/adjustments.h"

#include <algorithm>
#include <bit>

namespace plumb {

void Adjustments::init(const SamplingParams& sampling, std::span<const int32_t> prompt, int max_tokens, int vocab) {
  presence_ = sampling.presence_penalty;
  frequency_ = sampling.frequency_penalty;
  repetition_ = sampling.repetition_penalty;
  follows_output_ = presence_ != 0.0f || frequency_ != 0.0f || repetition_ != 1.0f;
  size_t most = sampling.logit_bias.size();
  if (follows_output_) most += static_cast<size_t>(max_tokens);
  if (repetition_ != 1.0f) most += prompt.size();
  most = std::min(most, static_cast<size_t>(vocab));
  if (most == 0) return;
  table_.assign(std::bit_ceil(2 * most), 0);
  ids_.reserve(most);
  factors_.reserve(most);
  terms_.reserve(most);
  biases_.reserve(most);
  counts_.reserve(most);
  for (const auto& [id, bias] : sampling.logit_bias) {
    const size_t at = entry(id);
    biases_[at] += bias;
    set_term(at);
  }
  if (repetition_ == 1.0f) return;
  for (const int32_t id : prompt) factors_[entry(id)] = repetition_;
}

void Adjustments::on_generated(int32_t id) {
  if (!follows_output_) return;
  const size_t at = entry(id);
  factors_[at] = repetition_;
  ++counts_[at];
  set_term(at);
}

size_t Adjustments::entry(int32_t id) {
  const size_t mask = table_.size() - 1;
  size_t slot = static_cast<uint32_t>(static_cast<uint32_t>(id) * 0x9e3779b1u) & mask;
  while (table_[slot] != 0) {
    const size_t at = static_cast<size_t>(table_[slot] - 1);
    if (ids_[at] == id) return at;
    slot = (slot + 1) & mask;
  }
  ids_.push_back(id);
  factors_.push_back(1.0f);
  terms_.push_back(0.0f);
  biases_.push_back(0.0f);
  counts_.push_back(0);
  table_[slot] = static_cast<int32_t>(ids_.size());
  return ids_.size() - 1;
}

// From the count, not step by step: the same numbers whatever order the tokens came in.
void Adjustments::set_term(size_t entry) {
  const int32_t count = counts_[entry];
  terms_[entry] = biases_[entry] - (count > 0 ? presence_ : 0.0f) - frequency_ * static_cast<float>(count);
}

}  // namespace plumb
