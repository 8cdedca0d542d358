// What a request may ask of the sampler. One plain value; validated at the HTTP edge, trusted here.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace plumb {

struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy, ties to the lowest id
  float top_p = 1.0f;               // (0, 1]
  int top_k = 0;                    // 0: off
  float min_p = 0.0f;               // [0, 1]
  float presence_penalty = 0.0f;    // OpenAI: subtracted once for every id already generated
  float frequency_penalty = 0.0f;   // OpenAI: subtracted per occurrence among the generated ids
  float repetition_penalty = 1.0f;  // > 0: divides positive and multiplies negative logits of ids in prompt or output
  std::vector<std::pair<int32_t, float>> logit_bias{};  // id, added before temperature
  uint64_t seed = 0;                                    // random numbers come from (seed, choice index, position) alone
  int logprobs = -1;                                    // -1: none; n >= 0: the sampled token's and the n best
};

}  // namespace plumb
