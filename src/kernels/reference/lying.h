// Kernels whose contracts lie, in builds with PLUMB_FAULTS only: what verification and `plumb check` must find out.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace plumb {

// "linear.lying", "mlp.lying", "moe.lying", "mla_attend.lying": claim every weight format with the reference's bound.
// They read block scales as powers of two, and bf16 elements as if they were e4m3. And an honest one, whose contract
// wants ue8m0 scales and says so: "linear.wants_ue8m0". None is chosen unless pinned.
std::vector<Kernel> lying_kernels();

}  // namespace plumb
