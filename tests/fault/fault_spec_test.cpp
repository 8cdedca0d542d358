#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "guard/fault.h"

namespace plumb {
namespace {

TEST(FaultSpec, IsReadAsItIsWritten) {
  for (const char* text :
       {"nan@layers.3.self_attn.o_proj", "scale_format@moe,phase=decode,row=2",
        "inf@linear,rows=5,from=65,rank=1,column=3,after=10,kernel=linear.strip16.avx2", "nan@sample,hot=1"}) {
    const Result<Fault> fault = parse_fault(text);
    ASSERT_TRUE(fault) << text;
    EXPECT_EQ(fault->to_string(), text);
  }
}

TEST(FaultSpec, OtherTextIsRefusedWithWhatWorks) {
  for (const char* text :
       {"", "nan", "nan@", "nonsense@linear", "nan@linear,row", "nan@linear,row=x", "nan@linear,row=-1",
        "nan@linear,phase=verify", "nan@linear,hot=0", "nan@linear,colour=red"}) {
    const Result<Fault> fault = parse_fault(text);
    ASSERT_FALSE(fault) << text;
    EXPECT_EQ(fault.error().code, Code::Usage);
    EXPECT_THAT(fault.error().works, ::testing::Not(::testing::IsEmpty())) << text;
  }
}

TEST(FaultSpec, KindsLiveWhereTheirBugCould) {
  const Call plain{.op = Op::Linear, .weight = kBf16};
  const Call nvfp4{.op = Op::Linear, .weight = kNvfp4};
  EXPECT_THAT(why_not(PlantedKind::ScaleFormat, plain), ::testing::HasSubstr("no block scales"));
  EXPECT_EQ(why_not(PlantedKind::ScaleFormat, nvfp4), "");
  EXPECT_EQ(why_not(PlantedKind::NibbleOrder, nvfp4), "");
  EXPECT_NE(why_not(PlantedKind::NibbleOrder, {.op = Op::Linear, .weight = kFp8BlockF32}), "");
  EXPECT_NE(why_not(PlantedKind::KvScaleDropped, {.op = Op::KvWrite, .kv = KvFormat::Bf16}), "");
  EXPECT_EQ(why_not(PlantedKind::KvScaleDropped, {.op = Op::KvWrite, .kv = KvFormat::Fp8Tile128}), "");
  EXPECT_NE(why_not(PlantedKind::Nan, {.op = Op::TopK}), "");
  EXPECT_NE(why_not(PlantedKind::RankSkew, plain), "");
  EXPECT_EQ(why_not(PlantedKind::RankSkew, {.op = Op::Router}), "");
}

}  // namespace
}  // namespace plumb
