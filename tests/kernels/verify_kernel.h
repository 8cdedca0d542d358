// The checker itself; fault_test.cpp shows that it finds planted faults.
#pragma once

#include "op_case.h"

namespace plumb::testing {

// All that `kernel` breaks of its contract in this case.
Problems verify_kernel(const Kernel& kernel, const Registry& registry, OpCase& one);
// Rows both accept must come out of both with equal bits.
Problems same_bits(const Kernel& a, const Kernel& b, const Registry& registry, OpCase& one);

// A call this contract accepts, and calls that differ from it in one field.
Call accepted_call(const Contract& contract);
struct Violation {
  std::string field{};
  Call call{};
  DeviceInfo device{};
};
std::vector<Violation> violations(const Contract& contract, const Call& good);

}  // namespace plumb::testing
