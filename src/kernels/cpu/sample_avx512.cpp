#if defined(__x86_64__)
#include "kernels/cpu/sample_body.h"

namespace plumb::cpu {
const SampleTier kSampleAvx512{.sample = sample};
}  // namespace plumb::cpu
#endif
