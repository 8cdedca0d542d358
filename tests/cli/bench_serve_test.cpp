// What `plumb bench serve` makes of its options; tests/e2e has it against a server.
#include <gtest/gtest.h>

#include "cli/bench_workload.h"
#include "cli/load_client.h"

namespace plumb {
namespace {

TEST(BenchServe, ReadsAddresses) {
  const auto expect = [](const std::string& url, const std::string& host, const std::string& port,
                         const std::string& base) {
    const Result<Address> address = parse_url(url);
    ASSERT_TRUE(address) << url;
    EXPECT_EQ(address->host, host) << url;
    EXPECT_EQ(address->port, port) << url;
    EXPECT_EQ(address->base_path, base) << url;
  };
  expect("http://h", "h", "80", "");
  expect("http://h:8000/", "h", "8000", "");
  expect("http://h:8000/v1", "h", "8000", "");
  expect("http://h/llm/v1/", "h", "80", "/llm");
  expect("http://[::1]:81/x", "::1", "81", "/x");
  for (const char* url : {"", "h", "https://h", "http://", "http://:80", "http://h:"})
    EXPECT_FALSE(parse_url(url)) << url;
}

TEST(BenchServe, OpenLoopsHaveTheAskedRateInTheMean) {
  BenchServeOptions options;
  options.requests = 4000;
  options.rate = 50;
  options.warmup = 2;
  const Result<std::vector<BenchRequest>> made = make_workload(options, "m");
  ASSERT_TRUE(made);
  ASSERT_EQ(made->size(), 4002u);
  EXPECT_EQ((*made)[1].at_s, 0);
  for (size_t i = 3; i < made->size(); ++i) EXPECT_GE((*made)[i].at_s, (*made)[i - 1].at_s);
  EXPECT_NEAR(made->back().at_s, 80, 6);
  EXPECT_NE((*made)[2].body, (*made)[3].body);
}

}  // namespace
}  // namespace plumb
