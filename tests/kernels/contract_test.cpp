// Every kernel of this build against its contract: the bound against the reference, both promises (the same bits again,
// and in other batches), nothing written outside, and every violation refused by its field's name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/thread_pool.h"
#include "kernels/cuda/contracts/contracts.h"
#include "op_case.h"
#include "verify_kernel.h"

namespace plumb::testing {
namespace {

const Registry& registry() {
  static const Registry kRegistry = make_registry();
  return kRegistry;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const Kernel& kernel : registry().kernels) names.push_back(kernel.contract.name);
  return names;
}

bool wants_a_process_a_rank(const Contract& contract) { return contract.name.find(".nccl.") != std::string::npos; }

class ContractTest : public ::testing::TestWithParam<std::string> {
 protected:
  const Kernel& kernel() const { return *registry().find(GetParam()); }
};

TEST_P(ContractTest, IsKept) {
  const Contract& contract = kernel().contract;
  if (!this_machine().has(contract.arch)) GTEST_SKIP() << "this machine has no " << to_string(contract.arch);
  if (!contract.absent.empty()) GTEST_SKIP() << contract.absent;
  if (wants_a_process_a_rank(contract)) GTEST_SKIP() << "NCCL wants a process for each rank: rank_kernels runs it so";
  Cases cases = make_cases(contract);
  ASSERT_FALSE(cases.empty()) << "no test case for " << to_string(contract.op);
  if (contract.name.ends_with(".lying")) {  // in builds with planted faults
    EXPECT_TRUE(std::any_of(
        cases.begin(), cases.end(),
        [this](const std::unique_ptr<OpCase>& one) { return !verify_kernel(kernel(), registry(), *one).empty(); }))
        << contract.name << " was not found out";
    return;
  }
  for (const std::unique_ptr<OpCase>& one : cases) {
    EXPECT_THAT(verify_kernel(kernel(), registry(), *one), ::testing::IsEmpty())
        << contract.name << ": " << one->describe();
  }
}

TEST_P(ContractTest, RefusesEachViolationByName) {
  const Contract& contract = kernel().contract;
  const DeviceInfo device{.name = "all", .isas = {Isa::Generic, contract.arch}};
  const Call good = accepted_call(contract);
  if (!contract.absent.empty()) {
    ASSERT_EQ(judge(contract, good, device).size(), 1u);
    EXPECT_EQ(judge(contract, good, device)[0].field, "absent");
    GTEST_SKIP() << contract.absent;
  }
  ASSERT_THAT(judge(contract, good, device), ::testing::IsEmpty());
  for (const Violation& violation : violations(contract, good)) {
    const std::vector<Refusal> refusals = judge(contract, violation.call, violation.device);
    ASSERT_EQ(refusals.size(), 1u) << contract.name << ": " << violation.field;
    EXPECT_EQ(refusals[0].field, violation.field) << contract.name;
    EXPECT_FALSE(refusals[0].have.empty() || refusals[0].wants.empty()) << contract.name << ": " << violation.field;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ContractTest, ::testing::ValuesIn(kernel_names()), [](const auto& test) {
  std::string name = test.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

// Kernels of one op that name the same order of additions give the same bits, whatever their row limits.
TEST(SumOrder, SameNameSameBits) {
  std::map<std::pair<Op, std::string>, std::vector<const Kernel*>> groups;
  for (const Kernel& kernel : registry().kernels) {
    if (!kernel.contract.sum_order.empty() && this_machine().has(kernel.contract.arch) &&
        !wants_a_process_a_rank(kernel.contract))
      groups[{kernel.contract.op, kernel.contract.sum_order}].push_back(&kernel);
  }
  for (const auto& [key, kernels] : groups) {
    for (size_t i = 1; i < kernels.size(); ++i) {
      for (const std::unique_ptr<OpCase>& one : make_cases(kernels[0]->contract)) {
        EXPECT_THAT(same_bits(*kernels[0], *kernels[i], registry(), *one), ::testing::IsEmpty())
            << kernels[0]->contract.name << " and " << kernels[i]->contract.name << ": " << one->describe();
      }
    }
  }
}

// Plans of builds without CUDA judge contracts that builds with it run.
TEST(Registry, EveryBuildKnowsThePlainCudaKernels) {
  std::vector<std::string> contracts, kernels;
  for (const Kernel& kernel : cuda_contracts()) contracts.push_back(kernel.contract.name);
  for (const Kernel& kernel : registry().kernels)
    if (kernel.contract.arch > Isa::Avx512Bf16) kernels.push_back(kernel.contract.name);
  EXPECT_THAT(kernels, ::testing::IsSupersetOf(contracts));
}

TEST(Registry, NamesAreUniqueAndEveryOpHasAReference) {
  std::vector<std::string> names = kernel_names();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  for (int op = 0; op < kOpCount; ++op) {
    EXPECT_TRUE(std::any_of(registry().kernels.begin(), registry().kernels.end(), [&](const Kernel& k) {
      return k.contract.reference && k.contract.op == static_cast<Op>(op);
    })) << to_string(static_cast<Op>(op));
  }
}

}  // namespace
}  // namespace plumb::testing
