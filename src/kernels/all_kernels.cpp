// Every kernel of this build, in one list; of the CUDA kernels at least the contracts.
#include "kernels/collective/collective_kernels.h"
#include "kernels/cpu/op_kernels.h"
#include "kernels/cpu/strip16_kernels.h"
#include "kernels/cuda/contracts/contracts.h"
#include "kernels/reference/reference.h"
#include "ops/kernel.h"

#ifdef PLUMB_HAVE_CUDA
#include "kernels/cuda/cuda_kernels.h"
#endif

#ifdef PLUMB_FAULTS
#include "kernels/reference/lying.h"
#endif

namespace plumb {
namespace {

void append(std::vector<Kernel>& to, std::vector<Kernel> from) {
  for (Kernel& kernel : from) to.push_back(std::move(kernel));
}

}  // namespace

Registry make_registry() {
  Registry registry;
  append(registry.kernels, reference_kernels());
  append(registry.kernels, cpu_strip_kernels());
  append(registry.kernels, cpu_op_kernels());
  append(registry.kernels, collective_kernels());
  registry.conversions = cpu_conversions();
  for (Conversion& conversion : cuda_conversions()) registry.conversions.push_back(std::move(conversion));
#ifdef PLUMB_HAVE_CUDA
  append(registry.kernels, cuda_kernels());
#else
  append(registry.kernels, cuda_contracts());
#endif
#ifdef PLUMB_FAULTS
  append(registry.kernels, lying_kernels());
#endif
  return registry;
}

}  // namespace plumb
