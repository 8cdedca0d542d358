// Every kernel of this build, in one list.
#include "kernels/cpu/op_kernels.h"
#include "kernels/cpu/strip16_kernels.h"
#include "kernels/reference/reference.h"
#include "ops/kernel.h"

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
  registry.conversions = cpu_conversions();
  return registry;
}

}  // namespace plumb
