// What the reference kernels share.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "device/stream.h"
#include "ops/args.h"
#include "ops/kernel.h"
#include "ops/kv_rows.h"
#include "tensor/encode.h"

namespace plumb::reference {

inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// f(begin, end) over the parts of 0 ... items - 1, one part a worker. No result may depend on how it is split.
template <class F>
void for_ranges(const Stream& stream, int64_t items, F&& f) {
  if (items <= 0) return;
  if (stream.pool == nullptr) return f(int64_t{0}, items);
  stream.pool->parallel([&](int worker, int workers) {
    const Range range = split(items, worker, workers);
    if (range.begin < range.end) f(range.begin, range.end);
  });
}

// The one rounding at an op's output.
inline float round_output(double value, const Numerics& numerics) {
  const float rounded = static_cast<float>(value);
  return numerics.round_bf16 ? round_bf16(rounded) : rounded;
}

// Rotates x[0 : rope_dim] by one row of cos and sin (model.md 3.3). With rope_bf16 in bf16 arithmetic every product is
// rounded too, as published code that keeps cos and sin in bf16 does; else only the result.
void rotate(float* x, int rope_dim, bool interleaved, const float* cos, const float* sin, const Numerics& numerics);

// y = x * rsqrt(mean(x^2) + eps) * weight over n elements (model.md 3.2). y may be x.
struct NormRow {
  const float* x = nullptr;
  const float* weight = nullptr;
  float* y = nullptr;
  int64_t n = 0;
  double eps = 0;
};
void rms_norm_row(const NormRow& row, const Numerics& numerics);

// Sum of a[i] * b[i]: eight interleaved partial sums, then those in order. A fixed order that a compiler can vectorise.
template <class A, class B>
double dot(const A* a, const B* b, int64_t n) {
  double part[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) part[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  }
  for (int j = 0; i < n; ++i, ++j) part[j] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double sum = 0;
  for (const double p : part) sum += p;
  return sum;
}

// Up to kStrip rows of a matrix in float64, a row a lane, so that a compiler vectorises over rows while each row's sum
// runs over k in order.
inline constexpr int kStrip = 16;
class Strip {
 public:
  explicit Strip(int64_t k) : k_(k), lanes_(static_cast<size_t>(k * kStrip)), row_(static_cast<size_t>(k)) {}

  // Rows [first, first + kStrip) of the matrix, or as many as there are.
  void load(const EncodedMatrix& matrix, int64_t first);
  // The same of float32 rows `ld` apart.
  void load(const float* rows, int64_t count, int64_t ld);

  // out[lane] = sum over k of x[k] * row(lane)[k].
  template <class X>
  void dot(const X* x, double* out) const {
    double sum[kStrip] = {};
    const double* w = lanes_.data();
    for (int64_t i = 0; i < k_; ++i, w += kStrip) {
      const double value = static_cast<double>(x[i]);
      for (int lane = 0; lane < kStrip; ++lane) sum[lane] += value * w[lane];
    }
    for (int lane = 0; lane < kStrip; ++lane) out[lane] = sum[lane];
  }

 private:
  void put(int64_t lane, const float* row);

  int64_t k_;
  std::vector<double> lanes_;  // [k, kStrip]
  std::vector<float> row_;
};
inline int64_t strips(int64_t rows) { return (rows + kStrip - 1) / kStrip; }

// Registration of each file's kernels.
void add_row_kernels(std::vector<Kernel>& out);         // norm.cpp
void add_rope_kernels(std::vector<Kernel>& out);        // rope.cpp
void add_linear_kernels(std::vector<Kernel>& out);      // linear.cpp
void add_expert_kernels(std::vector<Kernel>& out);      // moe.cpp
void add_indexer_kernels(std::vector<Kernel>& out);     // indexer.cpp
void add_attend_kernels(std::vector<Kernel>& out);      // attend.cpp
void add_sample_kernels(std::vector<Kernel>& out);      // sample.cpp
void add_collective_kernels(std::vector<Kernel>& out);  // collective.cpp
// The contract of a reference kernel: every format, every choice, one fixed order.
Contract reference_contract(Op op);

}  // namespace plumb::reference
