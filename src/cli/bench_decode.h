// plumb bench decode: a decode step against the bytes it has to read.
#pragma once

#include "base/result.h"
#include "cli/model_options.h"

namespace plumb {

struct BenchDecodeOptions {
  ModelOptions model{};
  int context = 1024;  // tokens in the cache before the first timed step
  int rows = 1;        // sequences that decode together
  int pairs = 30;
  bool ops = false;  // a table of the ops of one more step
  bool json = false;
};
Status bench_decode(BenchDecodeOptions& options, const CliContext& context);

}  // namespace plumb
