// Many HTTP requests at a time on one thread, each timed event by event.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench_workload.h"

namespace plumb {

// What one client saw. Times in seconds; those of a request count from when it was sent.
struct LoadResult {
  std::string error{};  // "": fine
  double sent_s = 0;    // after the start of the run
  double first_s = 0;   // to the first token; 0 when not streamed
  double total_s = 0;
  std::vector<double> gaps_s{};  // between events that brought tokens
  int prompt_tokens = 0, completion_tokens = 0;
  bool ended = false;              // the stream said why it ended; it may have brought no token
  bool counted_by_server = false;  // by `usage`; else events were counted
  std::string fingerprint{};
};

struct Address {
  std::string host{}, port{}, base_path{};
};
// http://HOST[:PORT][/PATH]. Fails (Usage) on anything else.
Result<Address> parse_url(const std::string& url);

// GET; the body, or why not. `headers` are whole lines.
Result<std::string> fetch(const Address& address, const std::string& path, const std::string& api_key);

struct LoadPlan {
  int concurrency = 1;  // 0: no limit
  bool timed = false;   // open loop: each at its own time
};
// Results in the order of the requests.
std::vector<LoadResult> send_load(const Address& address, const std::string& api_key,
                                  const std::vector<BenchRequest>& requests, const LoadPlan& plan);

}  // namespace plumb
