// Whose turn it is: start-time fair queueing over clients. Each request starts, in virtual time, where its client's
// last one ends, so a client with a thousand waiting requests delays another's first one by one of them, not by all.
// With one client that is the order of arrival. Owned by the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace plumb {

class FairShare {
 public:
  // The virtual start of a request that costs about `tokens`; smaller is sooner.
  int64_t place(const std::string& client, int64_t tokens) {
    if (ends_.size() > kMostClients) std::erase_if(ends_, [&](const auto& entry) { return entry.second <= now_; });
    int64_t& end = ends_[client];
    const int64_t start = std::max(now_, end);
    end = start + tokens;
    return start;
  }
  // One that was placed at `start` begins to run: virtual time is as late as the latest such start.
  void began(int64_t start) { now_ = std::max(now_, start); }

 private:
  static constexpr size_t kMostClients = 1024;
  std::unordered_map<std::string, int64_t> ends_{};
  int64_t now_ = 0;
};

}  // namespace plumb
