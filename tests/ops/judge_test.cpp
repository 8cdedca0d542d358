// A contract is judged field by field, and each violation is named.
#include <gtest/gtest.h>

#include "ops/contract.h"

namespace plumb {
namespace {

Contract fp8_kernel() {
  return {.name = "linear.fp8.test",
          .op = Op::Linear,
          .weight = {kFp8BlockUe8m0},
          .reads = {kBf16},
          .kv = {KvFormat::Bf16},
          .index_key = {IndexKeyFormat::Fp8},
          .arch = Isa::Avx512,
          .limits = {.m_max = 64,
                     .n_multiple = 16,
                     .k_multiple = 128,
                     .n_max = 4096,
                     .k_max = 8192,
                     .heads_max = 64,
                     .topk_max = 2048},
          .deterministic = true};
}

Call fitting_call() {
  return {.op = Op::Linear,
          .weight = kFp8BlockUe8m0,
          .activations = {kBf16, kF32},
          .kv = KvFormat::Bf16,
          .index_key = IndexKeyFormat::Fp8,
          .m_lo = 1,
          .m_hi = 64,
          .n = 256,
          .k = 512,
          .heads = 64,
          .topk = 2048};
}

DeviceInfo avx512_machine() { return {.name = "cpu", .isas = {Isa::Generic, Isa::Avx2, Isa::Avx512}}; }

std::vector<std::string> fields(const Contract& contract, const Call& call, const DeviceInfo& device) {
  std::vector<std::string> names;
  for (const Refusal& r : judge(contract, call, device)) names.push_back(r.field);
  return names;
}

TEST(Judge, AcceptsWhatFits) { EXPECT_TRUE(judge(fp8_kernel(), fitting_call(), avx512_machine()).empty()); }

TEST(Judge, F32AndUe8m0ScalesNeverMatch) {
  Call call = fitting_call();
  call.weight = kFp8BlockF32;
  const std::vector<Refusal> refusals = judge(fp8_kernel(), call, avx512_machine());
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].field, "weight.scale");
  EXPECT_EQ(refusals[0].have, "fp8_block(e4m3/128x128/f32)");
  EXPECT_EQ(refusals[0].wants, "fp8_block(e4m3/128x128/ue8m0)");
}

TEST(Judge, NamesEachViolatedField) {
  struct Case {
    const char* field;
    void (*change)(Call&);
  };
  const Case cases[] = {
      {"op", [](Call& c) { c.op = Op::Moe; }},
      {"weight.element", [](Call& c) { c.weight = kNvfp4; }},
      {"weight.block", [](Call& c) { c.weight = kFp8Tensor; }},
      {"reads", [](Call& c) { c.activations = {kF32}; }},
      {"kv", [](Call& c) { c.kv = KvFormat::Fp8Tile128; }},
      {"index_key", [](Call& c) { c.index_key = IndexKeyFormat::Bf16; }},
      {"limits.m_max", [](Call& c) { c.m_hi = 65; }},
      {"limits.n_max", [](Call& c) { c.n = 4112; }},
      {"limits.k_max", [](Call& c) { c.k = 8320; }},
      {"limits.n_multiple", [](Call& c) { c.n = 250; }},
      {"limits.k_multiple", [](Call& c) { c.k = 500; }},
      {"limits.heads_max", [](Call& c) { c.heads = 65; }},
      {"limits.topk_max", [](Call& c) { c.topk = 2049; }},
      {"weight.element",
       [](Call& c) {
         c.others = {{kNvfp4, "down_proj"}};
       }},
      {"weight.scale",
       [](Call& c) {
         c.others = {{kFp8BlockF32, "up_proj"}};
       }},
      {"round_bf16", [](Call& c) { c.numerics.round_bf16 = true; }},
      {"norm_two_roundings", [](Call& c) { c.numerics.norm_two_roundings = true; }},
      {"index_hadamard", [](Call& c) { c.numerics.index_hadamard = true; }},
      {"batch_invariant", [](Call& c) { c.deterministic = true; }},
  };
  for (const Case& test : cases) {
    Call call = fitting_call();
    test.change(call);
    EXPECT_EQ(fields(fp8_kernel(), call, avx512_machine()), std::vector<std::string>{test.field});
  }
}

TEST(Judge, MixedFormatsAreTakenByKernelsThatSaySo) {
  Contract contract = fp8_kernel();
  contract.weight = {kFp8BlockUe8m0, kBf16};
  Call call = fitting_call();
  call.others = {{kBf16, "layers.3.mlp.down_proj"}};
  const std::vector<Refusal> refusals = judge(contract, call, avx512_machine());
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].field, "mixed_weights");
  EXPECT_NE(refusals[0].have.find("layers.3.mlp.down_proj in bf16"), std::string::npos);
  contract.mixed_weights = true;
  EXPECT_TRUE(judge(contract, call, avx512_machine()).empty());
}

TEST(Judge, SharedMemoryIsTheDevices) {
  Contract contract = fp8_kernel();
  contract.arch = Isa::CudaPortable;
  contract.limits.shared_bytes = 200'000;
  DeviceInfo device{.name = "gpu", .isas = {Isa::Sm120a, Isa::CudaPortable}, .shared_bytes = 101'376};
  EXPECT_EQ(fields(contract, fitting_call(), device), std::vector<std::string>{"limits.shared_bytes"});
  device.shared_bytes = 232'448;
  EXPECT_TRUE(judge(contract, fitting_call(), device).empty());
}

TEST(Judge, NamesTheMissingInstructionSet) {
  const DeviceInfo old{.name = "cpu", .isas = {Isa::Generic}};
  EXPECT_EQ(fields(fp8_kernel(), fitting_call(), old), std::vector<std::string>{"arch"});
}

TEST(Judge, NeverStopsAtTheFirstReason) {
  Call call = fitting_call();
  call.weight = kBf16;
  call.n = 250;
  call.m_hi = 100;
  EXPECT_EQ(judge(fp8_kernel(), call, {.name = "cpu", .isas = {Isa::Generic}}).size(), 4u);
}

}  // namespace
}  // namespace plumb
