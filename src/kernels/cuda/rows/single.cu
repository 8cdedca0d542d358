// A linear of one row, for weights of a few MB: no rounding of the row by a kernel of its own, and all of it one trip
// to memory. Large ones are the library's.
#include "kernels/cuda/rows/row_kernels.h"
#include "kernels/cuda/rows/split_product.cuh"

namespace plumb::cuda {
namespace {

constexpr int kOutputs = 2;  // of a block
constexpr int64_t kMostK = 8192;

__global__ void __launch_bounds__(kSplitThreads)
    multiply_row(Mat w, const float* x, const float* bias, Act y, bool round) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kOutputs;
  multiply_split<uint16_t, kOutputs, 1>(w, n, x, 0, 1, [&](int64_t row, int, float total) {
    y.store(0, row, static_cast<double>(bias != nullptr ? total + bias[row] : total), round);
  });
}

void linear(const LinearArgs& a, Stream& s) {
  const auto blocks = static_cast<unsigned>((a.w->n() + kOutputs - 1) / kOutputs);
  multiply_row<<<blocks, kSplitThreads, 0, handle(s)>>>(mat(*a.w), a.x.f32(), a.w->bias, act(a.y),
                                                        a.numerics.round_bf16);
}

}  // namespace

void add_single_kernels(std::vector<Kernel>& out) {
  Contract c = row_contract(Op::Linear, "bf16.single");
  c.weight = {kBf16};
  c.limits = {.m_max = 1, .n_max = 4096, .k_max = kMostK};
  c.batch_invariant = false;  // with others beside it a row is another kernel's
  // 32 products in a row, five sums of lanes, eight of warps.
  c.error_bound.c = kMostK / kSplitThreads + 13;
  c.preference = 50;  // docs/performance.md
  out.push_back(make_kernel<LinearArgs, linear>(std::move(c)));
}

}  // namespace plumb::cuda
