// plumb bench guard: what the sentinels cost, in CPU time of the process.
#pragma once

#include "base/result.h"
#include "cli/model_options.h"

namespace plumb {

struct BenchGuardOptions {
  ModelOptions model{};
  int context = 256;  // tokens in the cache before the first step
  int rows = 1;       // sequences that decode together
  int chunk = 1;      // rows of each sequence in a step: more than 1 is a prompt
  int pairs = 200;
  bool captures = true;  // keep what ops change in place, as a server that may write captures does
  bool json = false;
};
Status bench_guard(BenchGuardOptions& options, const CliContext& context);

}  // namespace plumb
