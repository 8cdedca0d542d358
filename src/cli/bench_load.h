// plumb bench load: how fast weights get from the page cache to where kernels read them.
#pragma once

#include "base/result.h"
#include "cli/model_options.h"

namespace plumb {

struct BenchLoadOptions {
  ModelOptions model{};
  int repeats = 3;
};
Status bench_load(BenchLoadOptions& options, const CliContext& context);

}  // namespace plumb
