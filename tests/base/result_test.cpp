#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/check.h"

namespace plumb {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return Error{Code::Usage, std::to_string(x) + " is odd", "only even numbers have a half", {"2", "4"}};
  return x / 2;
}

Result<int> quarter(int x) {
  PLUMB_TRY(const int h, half(x));
  PLUMB_TRY(const int q, half(h));
  return q;
}

Status is_even(int x) {
  PLUMB_TRY_STATUS(half(x));
  return Ok{};
}

TEST(Result, TryPassesValuesOnAndStopsAtTheFirstError) {
  EXPECT_EQ(*quarter(12), 3);
  const Result<int> odd_half = quarter(6);
  ASSERT_FALSE(odd_half);
  EXPECT_EQ(odd_half.error().what, "3 is odd");
  EXPECT_TRUE(is_even(4));
  EXPECT_FALSE(is_even(5));
}

TEST(Result, CarriesTypesThatOnlyMove) {
  Result<std::unique_ptr<int>> r = std::make_unique<int>(5);
  const std::unique_ptr<int> p = *std::move(r);
  EXPECT_EQ(*p, 5);
}

TEST(Error, PrintsWhatWhyAndWhatWorks) {
  const Error error = half(3).error();
  EXPECT_EQ(error.to_string(), "3 is odd\n  only even numbers have a half\n  works instead: 2, 4");
  EXPECT_EQ((Error{Code::NotFound, "no file x", "", {}}.to_string()), "no file x");
}

TEST(Error, ContextIsPutInFront) {
  Error error{Code::Corrupt, "header is cut short", "", {}};
  error = std::move(error).in("model.safetensors");
  EXPECT_EQ(error.what, "model.safetensors: header is cut short");
  EXPECT_EQ(error.code, Code::Corrupt);
}

// Source: trust.md, "Exit codes everywhere".
TEST(Error, CodesMapToTheDocumentedExitCodes) {
  EXPECT_EQ(exit_code(Code::Usage), 1);
  EXPECT_EQ(exit_code(Code::NotFound), 1);
  EXPECT_EQ(exit_code(Code::Environment), 1);
  EXPECT_EQ(exit_code(Code::Unsupported), 2);
  EXPECT_EQ(exit_code(Code::Verification), 3);
  EXPECT_EQ(exit_code(Code::Corrupt), 4);
  EXPECT_EQ(exit_code(Code::Peer), 5);
  EXPECT_EQ(exit_code(Code::Internal), 70);
}

TEST(CheckDeathTest, BrokenInvariantNamesConditionAndMessage) {
  PLUMB_CHECK(1 + 1 == 2, "arithmetic");
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(PLUMB_CHECK(1 + 1 == 3, "arithmetic is broken"), "1 \\+ 1 == 3.*arithmetic is broken");
}

}  // namespace
}  // namespace plumb
