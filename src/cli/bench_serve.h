// plumb bench serve: load on an OpenAI-compatible server, and what its clients see of it.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace plumb {

struct BenchServeOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string model{};    // "": the first that /v1/models names
  std::string api_key{};  // sent as a bearer token
  std::string endpoint = "completions";
  std::string workload = "random";  // random, shared-prefix, trace
  std::string trace{};              // JSONL of the workload "trace"
  int requests = 100;
  int warmup = 1;          // sent first, one at a time, and not counted
  int concurrency = 16;    // closed loop: so many at a time; open loop: at most so many, 0: no limit
  double rate = 0;         // open loop: requests a second, Poisson; 0: closed loop
  int input_tokens = 128;  // words, in fact: the tokenizer is the server's
  int output_tokens = 64;
  int prefix_tokens = 1024;  // of the workload "shared-prefix", common to all requests
  double temperature = 0;
  uint64_t seed = 0;
  bool no_stream = false;
  bool use_eos = false;  // let the model end its answers
  bool json = false;
};

// Prints the report. Fails when the server can't be reached, the trace can't be read, or any request failed.
Status bench_serve(const BenchServeOptions& options);

}  // namespace plumb
