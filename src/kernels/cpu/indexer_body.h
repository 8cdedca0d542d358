// Keys transposed so that a lane is a key (model.md 3.7). Included by a file of each instruction set, which
// defines kHeadTile, the heads it has registers for, beforehand. Order of the sums, whatever the rows beside: a product
// over the head's dimensions in order, then the heads in order.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/cpu/indexer.h"
#include "kernels/cpu/widen.h"

namespace plumb::cpu {
namespace {

class Scores {
 public:
  explicit Scores(const IndexerJob& job) : job_(job), args_(job.args), dim_(job.args.head_dim) {}

  void run() {
    const int64_t last = args_.paging.positions[job_.row + job_.rows - 1];
    load_keys(std::min<int64_t>(kLanes, last - job_.first + 1));
    for (int r = 0; r < job_.rows; ++r) score_row(job_.row + r);
  }

 private:
  // keys_[d][key]
  void load_keys(int64_t count) {
    alignas(64) float row[kLanes][kIndexMaxDim];
    const int32_t sequence = args_.paging.sequence[job_.row];
    for (int64_t j = 0; j < kLanes; ++j) {
      if (j >= count) {
        std::fill(row[j], row[j] + padded(dim_), 0.0f);
        continue;
      }
      const int32_t position = static_cast<int32_t>(job_.first + j);
      widen_index_key(args_.kv.geometry, index_page(args_.kv, args_.paging, sequence, position),
                      position % args_.paging.page_tokens, row[j]);
    }
    for (int64_t d = 0; d < dim_; d += kLanes) transpose(&row[0][d], keys_ + d * kLanes);
  }

  // out[d][j] = in[j][d], rows of `in` kIndexMaxDim apart, in rounds of exchanging halves.
  static void transpose(const float* in, float* out) {
    Vec v[kLanes];
    for (int j = 0; j < kLanes; ++j) v[j] = load(in + j * kIndexMaxDim);
    exchange<1>(v);
    exchange<2>(v);
    if constexpr (kLanes > 4) exchange<4>(v);
    if constexpr (kLanes > 8) exchange<8>(v);
    for (int d = 0; d < kLanes; ++d) store(out + int64_t{d} * kLanes, v[d]);
  }
  // Element (j, d) changes place with (j ^ span, d ^ span) where j and d differ in that bit.
  template <int span>
  static void exchange(Vec (&v)[kLanes]) {
    constexpr auto kLow = [](int i) { return (i & span) == 0 ? i : kLanes + (i ^ span); };
    constexpr auto kHigh = [](int i) { return (i & span) == 0 ? i + span : kLanes + i; };
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) {
      if ((j & span) != 0) continue;
      const Vec a = v[j];
      const Vec b = v[j + span];
      v[j] = shuffle(a, b, kLow);
      v[j + span] = shuffle(a, b, kHigh);
    }
  }

  void score_row(int r) const {
    const int64_t length = std::min<int64_t>(int64_t{args_.paging.positions[r]} + 1, args_.logits.dim(1));
    const int64_t count = std::min<int64_t>(kLanes, length - job_.first);
    if (count <= 0) return;
    const float* q = args_.q.row_f32(r);
    const float* weights = args_.weights.row_f32(r);
    Vec total = {};
    int h = 0;
    for (; h + kHeadTile <= args_.heads; h += kHeadTile)
      add_heads<kHeadTile>(q + int64_t{h} * dim_, weights + h, total);
    for (; h < args_.heads; ++h) add_heads<1>(q + int64_t{h} * dim_, weights + h, total);
    alignas(64) float lanes[kLanes];
    store(lanes, total);
    std::copy_n(lanes, count, args_.logits.row_f32(r) + job_.first);
  }

  template <int heads>
  void add_heads(const float* q, const float* weights, Vec& total) const {
    Vec sum[heads] = {};
    for (int64_t d = 0; d < dim_; ++d) {
      const Vec key = load(keys_ + d * kLanes);
#pragma GCC unroll 8
      for (int h = 0; h < heads; ++h) sum[h] = madd(splat(q[h * dim_ + d]), key, sum[h]);
    }
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h) {
      const Vec scaled = sum[h] * args_.softmax_scale;
      const Vec positive = select(scaled < 0.0f, splat(0.0f), scaled);  // NaN passes
      total = madd(splat(weights[h] * args_.weight_scale), positive, total);
    }
  }

  const IndexerJob& job_;
  const IndexerLogitsArgs& args_;
  int64_t dim_;
  alignas(64) float keys_[(kIndexMaxDim + kLanes) * kLanes];
};

inline void score(const IndexerJob& job) { Scores(job).run(); }

constexpr IndexerTier kTier{.keys = kLanes, .score = score};

}  // namespace
}  // namespace plumb::cpu
