// What penalties and logit_bias do to one request's logits: a list of ids with a factor and a term, kept up to date as
// tokens are generated. Sized at admission; nothing is allocated afterwards.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling.h"

namespace plumb {

class Adjustments {
 public:
  // `max_tokens`: at most that many ids are still to be generated, of a vocabulary of `vocab`.
  void init(const SamplingParams& sampling, std::span<const int32_t> prompt, int max_tokens, int vocab);
  void on_generated(int32_t id);
  // The list depends on what is generated, so it can't be known ahead of a draft.
  bool follows_output() const { return follows_output_; }

  std::span<const int32_t> ids() const { return ids_; }
  std::span<const float> factors() const { return factors_; }
  std::span<const float> terms() const { return terms_; }

 private:
  size_t entry(int32_t id);
  void set_term(size_t entry);

  bool follows_output_ = false;
  float presence_ = 0, frequency_ = 0, repetition_ = 1;
  std::vector<int32_t> ids_{};
  std::vector<float> factors_{}, terms_{}, biases_{};
  std::vector<int32_t> counts_{};  // among the generated ids
  std::vector<int32_t> table_{};   // open addressing: id -> entry + 1; a power of two, at most half full
};

}  // namespace plumb
