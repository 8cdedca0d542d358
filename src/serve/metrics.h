// GET /metrics in Prometheus' text format. Names begin with plumb_.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace plumb {

struct EngineStats;

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // `route` is one of our own, never the caller's path: labels must stay few.
  void http_request(std::string_view route, int status, double seconds);
  void first_token(double seconds);
  // Between two tokens of a choice that came in different steps.
  void between_tokens(double seconds, int times);
  struct Finished {
    std::string_view reason = "stop";  // stop, length, abort, error
    double seconds = 0;
    double seconds_per_token = 0;  // after the first; 0: fewer than two tokens
    int prompt_tokens = 0, completion_tokens = 0;
  };
  void finished(const Finished& what);

  struct Gauges {
    int connections = 0;
    bool ready = false;
  };
  // `engine` may be null while loading.
  // With a `vllm_model`, the vllm: names that say the same follow, labelled with it.
  std::string text(const EngineStats* engine, Gauges gauges, const std::string& vllm_model = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plumb
