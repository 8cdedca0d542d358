#include "kernels/cpu/sample_body.h"

namespace plumb::cpu {
const SampleTier kSampleGeneric{.sample = sample};
}  // namespace plumb::cpu
