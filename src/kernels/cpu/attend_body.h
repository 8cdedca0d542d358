// One group of heads over a few rows, in float32 (model.md 3.6). Included by a file of each instruction set, which
// defines kTile, the side of the tiles it has registers for, beforehand.
//
// Order of every sum, whatever the rows and heads beside it: q_lat over nope in order; a score over latent and rope
// as many lanes apart as a register has, then the lanes; softmax and o_lat over the selected positions in order, in
// blocks of 32 with a running maximum; the output over the latent as many lanes apart as a register has, then the
// lanes.
#pragma once

#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/widen.h"

namespace plumb::cpu {
namespace {

constexpr int kBlock = 32;      // positions decoded at once
constexpr int kWeightRows = 8;  // rows of kv_b decoded at once
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// o_lat, maximum and sum of one head and row.
struct Softmax {
  float largest = kMinusInf;
  float sum = 0;
};

class Attend {
 public:
  explicit Attend(const AttendJob& job)
      : job_(job),
        args_(job.args),
        kv_b_(job.args.kv_b->source),
        rank_(padded(job.args.kv_b->k())),
        width_(rank_ + padded(job.args.rope_dim)) {}

  void run() {
    for (int h = 0; h < job_.heads; ++h) absorb_queries(h);
    for (int r = 0; r < job_.rows; ++r) {
      if (args_.paging.sequence[job_.row + r] >= 0) attend_row(r);
    }
    for (int h = 0; h < job_.heads; ++h) project_values(h);
  }

 private:
  // [kAttendRows][kAttendHeads][width]
  float* q_lat(int r, int h) { return q_ + (r * kAttendHeads + h) * width_; }
  float* o_lat(int r, int h) { return o_ + (r * kAttendHeads + h) * rank_; }
  const float* query(int r, int h) const {
    return args_.q.row_f32(job_.row + r) + int64_t{job_.head + h} * (args_.nope_dim + args_.rope_dim);
  }
  bool skipped(int r) const { return args_.paging.sequence[job_.row + r] < 0; }

  // q_lat = W_UK^T q_nope | q_rope
  void absorb_queries(int h) {
    for (int r = 0; r < job_.rows; ++r) {
      float* q = q_lat(r, h);
      std::fill(q, q + width_, 0.0f);
      if (!skipped(r)) std::copy_n(query(r, h) + args_.nope_dim, args_.rope_dim, q + rank_);
    }
    const int64_t first = int64_t{job_.head + h} * (args_.nope_dim + args_.v_dim);
    for (int n = 0; n < args_.nope_dim; n += kWeightRows) {
      const int count = std::min(kWeightRows, args_.nope_dim - n);
      for (int i = 0; i < count; ++i) kv_b_.decode(first + n + i, weights_ + i * rank_);
      for (int r = 0; r < job_.rows; ++r) {
        if (!skipped(r)) add_weight_rows(query(r, h) + n, count, q_lat(r, h));
      }
    }
  }

  // q_lat += sum over the decoded rows of q[i] row i
  void add_weight_rows(const float* q, int count, float* out) const {
    Vec factor[kWeightRows];
    for (int i = 0; i < count; ++i) factor[i] = splat(q[i]);
    for (int64_t c = 0; c < rank_; c += kLanes) {
      Vec sum = load(out + c);
      if (count == kWeightRows) {
#pragma GCC unroll 8
        for (int i = 0; i < kWeightRows; ++i) sum = madd(factor[i], load(weights_ + i * rank_ + c), sum);
      } else {
        for (int i = 0; i < count; ++i) sum = madd(factor[i], load(weights_ + i * rank_ + c), sum);
      }
      store(out + c, sum);
    }
  }

  void attend_row(int r) {
    for (int h = 0; h < kAttendHeads; ++h) {
      softmax_[r][h] = {};
      std::fill(o_lat(r, h), o_lat(r, h) + rank_, 0.0f);
      if (h >= job_.heads) std::fill(q_lat(r, h), q_lat(r, h) + width_, 0.0f);
    }
    const int64_t t = job_.row + r;
    const int32_t* indices = args_.topk_indices.row_i32(t);
    const int64_t selected = args_.topk_indices.dim(1);
    int count = 0;
    for (int64_t i = 0; i < selected; ++i) {
      const int32_t j = indices[i];
      if (j < 0 || j > args_.paging.positions[t]) continue;
      const std::byte* row = latent_row(args_.kv, args_.paging, args_.paging.sequence[t], j);
      widen_latent(args_.kv.geometry, row, keys_ + count * width_);
      if (++count == kBlock) {
        attend_block(r, count);
        count = 0;
      }
    }
    if (count > 0) attend_block(r, count);
  }

  void attend_block(int r, int count) {
    const int whole = (count + kTile - 1) / kTile * kTile;
    std::fill(keys_ + count * width_, keys_ + whole * width_, 0.0f);
    alignas(64) float score[kAttendHeads][kBlock];
    for (int h = 0; h < kAttendHeads; h += kTile) {
      for (int j = 0; j < whole; j += kTile) score_tile(q_lat(r, h), keys_ + j * width_, &score[h][j]);
    }
    for (int h = 0; h < kAttendHeads; ++h) {
      std::fill(score[h] + count, score[h] + kBlock, kMinusInf);
      soften(score[h], softmax_[r][h], o_lat(r, h));
    }
    for (int h = 0; h < kAttendHeads; h += kTile) {
      int64_t c = 0;
      constexpr int64_t kWide = int64_t{kTile} * kLanes;
      for (; c + kWide <= rank_; c += kWide) value_tile<kTile>(&score[h][0], whole, c, o_lat(r, h));
      for (; c < rank_; c += kLanes) value_tile<1>(&score[h][0], whole, c, o_lat(r, h));
    }
  }

  // Scores of kTile heads and kTile positions, [kTile][kBlock].
  void score_tile(const float* q, const float* keys, float* out) const {
    Vec sum[kTile][kTile] = {};
    for (int64_t c = 0; c < width_; c += kLanes) {
      Vec key[kTile];
#pragma GCC unroll 4
      for (int j = 0; j < kTile; ++j) key[j] = load(keys + j * width_ + c);
#pragma GCC unroll 4
      for (int h = 0; h < kTile; ++h) {
        const Vec x = load(q + h * width_ + c);
#pragma GCC unroll 4
        for (int j = 0; j < kTile; ++j) sum[h][j] = madd(x, key[j], sum[h][j]);
      }
    }
    for (int h = 0; h < kTile; ++h) {
      float lanes[4];
      sum_lanes4(sum[h][0], sum[h][1], sum[h][kTile - 2], sum[h][kTile - 1], lanes);
      for (int j = 0; j < kTile; ++j) out[h * kBlock + j] = lanes[4 - kTile + j] * args_.softmax_scale;
    }
  }

  // Scores to e^(score - largest so far); what was summed before is brought to the new largest.
  void soften(float* score, Softmax& state, float* o) const {
    float largest = state.largest;
    for (int j = 0; j < kBlock; ++j) largest = score[j] > largest ? score[j] : largest;
    if (largest > state.largest && state.largest > kMinusInf) {
      const float factor = exp_negative(splat(state.largest - largest))[0];
      state.sum *= factor;
      for (int64_t c = 0; c < rank_; c += kLanes) store(o + c, load(o + c) * factor);
    }
    state.largest = largest;
    const Vec shift = splat(largest);
    Vec sum = {};
    for (int j = 0; j < kBlock; j += kLanes) {
      const Vec p = exp_negative(load(score + j) - shift);
      store(score + j, p);
      sum += p;
    }
    state.sum += sum_lanes(sum);
  }

  // o_lat[h][c : c + vecs * 16] += sum_j p[h][j] key[j]
  template <int vecs>
  void value_tile(const float* p, int count, int64_t c, float* o) const {
    Vec sum[kTile][vecs];
#pragma GCC unroll 4
    for (int h = 0; h < kTile; ++h) {
#pragma GCC unroll 4
      for (int v = 0; v < vecs; ++v) sum[h][v] = load(o + h * rank_ + c + int64_t{v} * kLanes);
    }
    for (int j = 0; j < count; ++j) {
      Vec key[vecs];
#pragma GCC unroll 4
      for (int v = 0; v < vecs; ++v) key[v] = load(keys_ + j * width_ + c + int64_t{v} * kLanes);
#pragma GCC unroll 4
      for (int h = 0; h < kTile; ++h) {
        const Vec weight = splat(p[h * kBlock + j]);
#pragma GCC unroll 4
        for (int v = 0; v < vecs; ++v) sum[h][v] = madd(weight, key[v], sum[h][v]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < kTile; ++h) {
#pragma GCC unroll 4
      for (int v = 0; v < vecs; ++v) store(o + h * rank_ + c + int64_t{v} * kLanes, sum[h][v]);
    }
  }

  // out = W_UV o_lat / sum
  void project_values(int h) {
    const int64_t first = int64_t{job_.head + h} * (args_.nope_dim + args_.v_dim) + args_.nope_dim;
    for (int v = 0; v < args_.v_dim; v += kWeightRows) {
      const int count = std::min(kWeightRows, args_.v_dim - v);
      for (int i = 0; i < count; ++i) kv_b_.decode(first + v + i, weights_ + i * rank_);
      if (count < kWeightRows) std::fill(weights_ + count * rank_, weights_ + kWeightRows * rank_, 0.0f);
      for (int r = 0; r < job_.rows; ++r) {
        if (!skipped(r)) project_row(r, h, v, count);
      }
    }
  }

  void project_row(int r, int h, int v, int count) {
    Vec sum[kWeightRows] = {};
    const float* o = o_lat(r, h);
    for (int64_t c = 0; c < rank_; c += kLanes) {
      const Vec x = load(o + c);
#pragma GCC unroll 8
      for (int i = 0; i < kWeightRows; ++i) sum[i] = madd(x, load(weights_ + i * rank_ + c), sum[i]);
    }
    float lanes[kWeightRows];
    sum_lanes4(sum[0], sum[1], sum[2], sum[3], lanes);
    sum_lanes4(sum[4], sum[5], sum[6], sum[7], lanes + 4);
    const float total = softmax_[r][h].sum;
    float* out = args_.out.row_f32(job_.row + r) + int64_t{job_.head + h} * args_.v_dim + v;
    for (int i = 0; i < count; ++i) {
      const float value = total == 0.0f ? 0.0f : lanes[i] / total;  // nothing selected: zeros
      out[i] = args_.numerics.round_bf16 ? round_bf16(value) : value;
    }
  }

  const AttendJob& job_;
  const MlaAttendArgs& args_;
  RowDecoder kv_b_;
  int64_t rank_;   // padded
  int64_t width_;  // padded rank + padded rope
  Softmax softmax_[kAttendRows][kAttendHeads];
  alignas(64) float weights_[kWeightRows * kAttendMaxRank];
  alignas(64) float keys_[kBlock * kAttendMaxWidth];
  alignas(64) float q_[int64_t{kAttendRows} * kAttendHeads * kAttendMaxWidth];
  alignas(64) float o_[int64_t{kAttendRows} * kAttendHeads * kAttendMaxRank];
};

// On the worker's stack: about a megabyte, of which only what the model's sizes need is touched.
inline void attend(const AttendJob& job) { Attend(job).run(); }

}  // namespace
}  // namespace plumb::cpu
