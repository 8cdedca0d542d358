// Resolution of plans: what is chosen, what is refused, and what the user is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ops/executor.h"
#include "ops/plan.h"

namespace plumb {
namespace {

using ::testing::HasSubstr;

void nothing(const void*, Stream&) {}

Kernel kernel(const char* name, Format weight, int preference, bool reference = false) {
  return {.contract = {.name = name,
                       .op = Op::Linear,
                       .weight = {weight},
                       .reads = {kBf16},
                       .deterministic = true,
                       .batch_invariant = true,
                       .sum_order = name,
                       .preference = preference,
                       .reference = reference},
          .launch = nothing};
}

Registry make_test_registry() {
  Registry r;
  r.kernels = {kernel("linear.ue8m0", kFp8BlockUe8m0, 90), kernel("linear.f32.slow", kFp8BlockF32, 10),
               kernel("linear.f32.fast", kFp8BlockF32, 20), kernel("linear.reference", kFp8BlockF32, 0, true)};
  r.kernels[2].contract.limits.m_max = 8;
  return r;
}

const Registry& registry() {
  static const Registry instance = make_test_registry();
  return instance;
}

std::vector<SiteDecl> one_site() {
  return {{.name = "layers.0.self_attn.q_a_proj",
           .layer = 0,
           .call = {.op = Op::Linear, .weight = kFp8BlockF32, .activations = {kBf16}, .n = 128, .k = 128}}};
}

const DeviceInfo kCpu{.name = "cpu", .isas = {Isa::Generic}};

TEST(Resolve, TakesTheHighestPreferenceOfTheAcceptedInEachBucket) {
  const Result<Plan> plan = resolve(one_site(), registry(), kCpu, {.buckets = {{1, 8}, {9, 64}}});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->kernel(0, 1).contract.name, "linear.f32.fast");
  EXPECT_EQ(plan->kernel(0, 8).contract.name, "linear.f32.fast");
  EXPECT_EQ(plan->kernel(0, 9).contract.name, "linear.f32.slow");
  EXPECT_EQ(plan->sites[0].choices[0].candidates->size(), 4u);
}

TEST(Resolve, AKernelForManyRowsIsPreferredForThoseOnly) {
  Registry r;
  r.kernels = {kernel("linear.few", kFp8BlockF32, 20), kernel("linear.many", kFp8BlockF32, 30)};
  r.kernels[1].contract.preferred_from = 9;
  PlanOptions options{.buckets = {{1, 8}, {9, 64}}};
  Result<Plan> plan = resolve(one_site(), r, kCpu, options);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->kernel(0, 8).contract.name, "linear.few");
  EXPECT_EQ(plan->kernel(0, 9).contract.name, "linear.many");
  options.deterministic = true;  // one order of additions in all buckets
  plan = resolve(one_site(), r, kCpu, options);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->kernel(0, 9).contract.name, "linear.few");
}

TEST(Resolve, NeverTakesTheReferenceByItself) {
  Registry only_reference;
  only_reference.kernels = {kernel("linear.reference", kFp8BlockF32, 0, true),
                            kernel("linear.ue8m0", kFp8BlockUe8m0, 90)};
  const Result<Plan> plan = resolve(one_site(), only_reference, kCpu, {.buckets = {{1, 1}}});
  ASSERT_FALSE(plan);
  EXPECT_EQ(exit_code(plan.error().code), 2);
  EXPECT_THAT(plan.error().to_string(), HasSubstr("layers.0.self_attn.q_a_proj"));
  EXPECT_THAT(plan.error().to_string(), HasSubstr("linear.ue8m0 takes fp8_block(e4m3/128x128/ue8m0)"));
  EXPECT_THAT(plan.error().to_string(), HasSubstr("--backend reference"));
  EXPECT_TRUE(resolve(one_site(), only_reference, kCpu, {.backend = "reference", .buckets = {{1, 1}}}));
}

TEST(Resolve, APinnedKernelIsHonouredOrRefusedWithAlternatives) {
  const Result<Plan> honoured =
      resolve(one_site(), registry(), kCpu, {.pinned = {{"linear", "linear.f32.slow"}}, .buckets = {{1, 1}}});
  ASSERT_TRUE(honoured);
  EXPECT_EQ(honoured->kernel(0, 1).contract.name, "linear.f32.slow");

  const Result<Plan> refused =
      resolve(one_site(), registry(), kCpu, {.pinned = {{"linear", "linear.ue8m0"}}, .buckets = {{1, 1}}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(exit_code(refused.error().code), 2);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("--kernel linear=linear.ue8m0 cannot be honoured"));
  EXPECT_THAT(refused.error().to_string(), HasSubstr("weight.scale"));
  EXPECT_THAT(refused.error().to_string(), HasSubstr("--kernel linear=linear.f32.fast"));
  EXPECT_THAT(refused.error().to_string(), HasSubstr("no --kernel linear at all"));
}

// Places of one op with weights of two formats: a kernel that one of them refuses is offered for the other alone.
TEST(Resolve, WhatAPinsRefusalOffersWorks) {
  std::vector<SiteDecl> sites = one_site();
  SiteDecl other = sites[0];
  other.name = "layers.12.mlp.gate_proj";
  other.call.weight = kFp8BlockUe8m0;
  sites.push_back(other);
  Registry both = registry();
  both.kernels.push_back(kernel("linear.any", kFp8BlockF32, 5));
  both.kernels.back().contract.weight.push_back(kFp8BlockUe8m0);
  const auto pinned = [&](std::vector<KernelPin> pins) {
    return resolve(sites, both, kCpu, {.pinned = std::move(pins), .buckets = {{1, 1}}});
  };
  const Result<Plan> refused = pinned({{"linear", "linear.ue8m0"}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().works,
              testing::ElementsAre("--kernel linear=linear.any (fits all its places)",
                                   "no --kernel linear at all (each place gets the best that fits it)",
                                   "--kernel layers.0.self_attn.q_a_proj=linear.f32.slow",
                                   "--kernel layers.0.self_attn.q_a_proj=linear.f32.fast",
                                   "--kernel layers.0.self_attn.q_a_proj=linear.reference",
                                   "--kernel layers.0.self_attn.q_a_proj=linear.any"));
  EXPECT_TRUE(pinned({{"linear", "linear.any"}}));
  EXPECT_TRUE(pinned({{"layers.0.self_attn.q_a_proj", "linear.f32.slow"}}));
}

TEST(Resolve, TheNearestPinWinsAndTwoForOnePlaceAreRefused) {
  const auto pinned = [](std::vector<KernelPin> pins) {
    return resolve(one_site(), registry(), kCpu, {.pinned = std::move(pins), .buckets = {{1, 1}}});
  };
  const KernelPin op{"linear", "linear.f32.fast"}, layers{"layers.*.self_attn.q_a_proj", "linear.f32.slow"},
      place{"layers.0.self_attn.q_a_proj", "linear.f32.fast"};
  EXPECT_EQ(pinned({layers, op})->kernel(0, 1).contract.name, "linear.f32.slow");
  EXPECT_EQ(pinned({place, layers})->kernel(0, 1).contract.name, "linear.f32.fast");
  const Result<Plan> two = pinned({op, {"linear", "linear.f32.slow"}});
  ASSERT_FALSE(two);
  EXPECT_THAT(two.error().to_string(), HasSubstr("can't both be honoured"));
  EXPECT_FALSE(pinned({{"layers.*.mlp.down_proj", "linear.f32.slow"}}));
}

TEST(Resolve, APinWithNothingToActOnIsAnError) {
  const Result<Plan> plan =
      resolve(one_site(), registry(), kCpu, {.pinned = {{"all_reduce", "x"}}, .buckets = {{1, 1}}});
  ASSERT_FALSE(plan);
  EXPECT_EQ(exit_code(plan.error().code), 1);
  EXPECT_THAT(plan.error().to_string(), HasSubstr("nothing to act on"));
}

TEST(Resolve, DeterministicAsksForOneSumOrderOverAllBuckets) {
  const PlanOptions options{.buckets = {{1, 8}, {9, 64}}, .deterministic = true};
  const Result<Plan> two_orders = resolve(one_site(), registry(), kCpu, options);
  ASSERT_FALSE(two_orders);
  EXPECT_THAT(two_orders.error().to_string(), HasSubstr("--deterministic cannot be honoured"));
  Registry same_order = registry();
  for (Kernel& k : same_order.kernels) k.contract.sum_order = "k";
  EXPECT_TRUE(resolve(one_site(), same_order, kCpu, options));
}

// A kernel that reads another layout is a candidate only where an exact conversion leads there.
TEST(Resolve, OnlyExactConversionsAreInsertedByThemselves) {
  Registry registry_with_layout = registry();
  registry_with_layout.kernels[2].contract.weight_layout = Layout::CpuStrip16;
  const PlanOptions options{.buckets = {{1, 8}}};
  const auto chosen = [&] {
    const Result<Plan> plan = resolve(one_site(), registry_with_layout, kCpu, options);
    EXPECT_TRUE(plan);
    return plan ? plan->kernel(0, 1).contract.name : "";
  };
  EXPECT_EQ(chosen(), "linear.f32.slow");
  registry_with_layout.conversions = {{.to = Layout::CpuStrip16, .rounding = true, .formats = {kFp8BlockF32}}};
  EXPECT_EQ(chosen(), "linear.f32.slow");
  const Result<Plan> pinned =
      resolve(one_site(), registry_with_layout, kCpu, {.pinned = {{"linear", "linear.f32.fast"}}, .buckets = {{1, 8}}});
  ASSERT_FALSE(pinned);
  EXPECT_THAT(pinned.error().to_string(), HasSubstr("no exact conversion leads"));
  registry_with_layout.conversions.front().rounding = false;
  EXPECT_EQ(chosen(), "linear.f32.fast");
}

TEST(Resolve, AWeightHasOneLayoutBesidesTheFiles) {
  Registry two_layouts = registry();
  two_layouts.kernels[1].contract.weight_layout = Layout::CpuStrip16;
  two_layouts.kernels[2].contract.weight_layout = Layout::CudaRowMajor;
  two_layouts.conversions = {{.to = Layout::CpuStrip16, .formats = {kFp8BlockF32}},
                             {.to = Layout::CudaRowMajor, .formats = {kFp8BlockF32}}};
  const Result<Plan> plan = resolve(one_site(), two_layouts, kCpu, {.buckets = {{1, 8}, {9, 64}}});
  ASSERT_FALSE(plan);
  EXPECT_THAT(plan.error().to_string(), HasSubstr("two weight layouts"));
}

TEST(Plan, FingerprintFollowsWhatDecidesNumbers) {
  const Result<Plan> a = resolve(one_site(), registry(), kCpu, {.buckets = {{1, 8}}});
  const Result<Plan> b = resolve(one_site(), registry(), kCpu, {.buckets = {{1, 8}}});
  const Result<Plan> c =
      resolve(one_site(), registry(), kCpu, {.pinned = {{"linear", "linear.f32.slow"}}, .buckets = {{1, 8}}});
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  EXPECT_NE(a->fingerprint(), c->fingerprint());
}

TEST(Plan, TableAndJsonNameKernelsAndRefusals) {
  const Result<Plan> plan = resolve(one_site(), registry(), kCpu, {.buckets = {{1, 8}}});
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->to_table(), HasSubstr("linear.f32.fast"));
  const nlohmann::ordered_json json = plan->to_json();
  EXPECT_EQ(json["sites"][0]["choices"][0]["kernel"], "linear.f32.fast");
  EXPECT_EQ(json["sites"][0]["choices"][0]["candidates"][0]["refusals"][0]["field"], "weight.scale");
}

TEST(Executor, LaunchesThePlannedKernelAndNothingForNoRows) {
  static int launches = 0;
  Registry r = registry();
  for (Kernel& k : r.kernels) k.launch = [](const void*, Stream&) { ++launches; };
  const Result<Plan> plan = resolve(one_site(), r, kCpu, {.buckets = {{1, 8}}});
  ASSERT_TRUE(plan);
  Executor executor(*plan, {});
  executor.run(0, 0, LinearArgs{});
  EXPECT_EQ(launches, 0);
  executor.run(0, 3, LinearArgs{});
  EXPECT_EQ(launches, 1);
}

}  // namespace
}  // namespace plumb
