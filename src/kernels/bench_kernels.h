// plumb bench kernels: kernels of the registry, timed against what the machine gives at best.
//
// Every figure is the median of ratios of pairs: the probe (reading all the weights once; vdpbf16ps in registers), then
// the kernel, in the same process, because a shared machine's speed wanders by the minute. Weights are cold: at least
// 1 GB of distinct ones in turn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plumb {

struct BenchKernelsOptions {
  std::string op = "linear";           // linear, mlp, moe, prepare (the conversion of weights at load)
  std::vector<std::string> formats{};  // bf16 f16 f32 fp8_block fp8_ue8m0 fp8_tensor fp8_channel nvfp4; empty: all
  std::vector<int64_t> rows{1, 512};
  int64_t n = 14336;  // outputs; of mlp and moe: the intermediate size
  int64_t k = 4096;
  int topk = 8;  // experts a row, of moe
  int pairs = 20;
  std::string kernel{};  // only those whose name contains it; empty: the preferred one of this machine
  int threads = 0;       // 0: all cores
  bool json = false;
};
// Prints a table or, one line each, JSON. Exit code: 0, or 1 when nothing fits the options.
int bench_kernels(const BenchKernelsOptions& options);

}  // namespace plumb
