// Sampling of one row: what an instruction set provides.
#pragma once

#include "ops/args.h"

namespace plumb::cpu {

inline constexpr int kSampleMaxVocab = 1 << 18;

struct SampleJob {
  const SampleRow& row;
  float* logits = nullptr;
  int vocab = 0;
};
struct SampleTier {
  void (*sample)(const SampleJob& job, SampleOut& out) = nullptr;
};
extern const SampleTier kSampleGeneric;
#if defined(__x86_64__)
extern const SampleTier kSampleAvx512;
#endif

}  // namespace plumb::cpu
