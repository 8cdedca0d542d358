#include "guard/judge_cache.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "guard/bounds.h"
#include "ops/kv_rows.h"

namespace plumb {
namespace {

double bf16_steps(const Numerics& numerics, double steps) { return numerics.round_bf16 ? steps * kBf16Step / 2 : 0.0; }
double magnitude_of(float x) { return std::fabs(static_cast<double>(x)); }

// Error of one FP8 group of largest magnitude `amax`: the neighbouring code, or a subnormal one.
double fp8_step(double value, double amax) { return std::fabs(value) / 8 + amax / 448 / 512 * 1.01; }

// A value near a tie may round to the neighbouring code; that must stay rare.
class MovedCodes {
 public:
  void add(double have, double want) {
    ++count_;
    if (!(std::fabs(have - want) <= 1e-5 * std::fabs(want))) ++moved_;
  }
  void judge(const char* tensor, int64_t row, Comparison& out) const {
    const int64_t few = count_ / 50 + 1;
    if (moved_ * 50 > count_ + 50)
      out.broken({.tensor = tensor,
                  .kind = "bytes",
                  .row = row,
                  .column = -1,
                  .have = static_cast<double>(moved_),
                  .want = static_cast<double>(few)});
  }

 private:
  int64_t count_ = 0, moved_ = 0;
};

// Allowed error of the cache's latent part, from the error of the numbers that were rounded into it.
std::vector<double> stored_error(const KvGeometry& g, const float* stored, const std::vector<double>& error) {
  std::vector<double> out = error;
  if (g.latent == KvFormat::F32) return out;
  double amax = 0;
  for (int i = 0; i < g.kv_lora_rank; ++i) {
    const size_t at = static_cast<size_t>(i);
    if (i % 128 == 0) {
      amax = 1e-4;
      for (int j = i; j < std::min(i + 128, g.kv_lora_rank); ++j) amax = std::max(amax, magnitude_of(stored[j]));
    }
    const double value = magnitude_of(stored[i]);
    out[at] += g.latent == KvFormat::Bf16 ? kBf16Step * value : fp8_step(value, amax);
  }
  return out;
}

// Error of a turned head, from the sums of magnitudes of what is turned.
template <class Args>
std::vector<double> turned(const Args& args, std::vector<double> magnitude) {
  const int half = args.rope_dim / 2;
  for (int i = 0; i < half; ++i) {
    const size_t a = static_cast<size_t>(args.interleaved ? 2 * i : i);
    const size_t b = static_cast<size_t>(args.interleaved ? 2 * i + 1 : i + half);
    magnitude[a] = magnitude[b] = magnitude[a] + magnitude[b];
  }
  if (!args.numerics.index_hadamard) return magnitude;
  double sum = 0;
  for (const double m : magnitude) sum += m;
  std::fill(magnitude.begin(), magnitude.end(), sum / std::sqrt(static_cast<double>(magnitude.size())));
  return magnitude;
}

const std::byte* slot_of(const KvWriteArgs& args, int64_t r) {
  return latent_row(args.kv, args.paging, args.paging.sequence[r], args.paging.positions[r]);
}

void judge_latent_row(const Contract& contract, const KvWriteArgs& before, const KvWriteArgs& have,
                      const KvWriteArgs& want, int64_t r, Comparison& out) {
  const KvGeometry& g = have.kv.geometry;
  const int rank = g.kv_lora_rank;
  std::vector<float> mine(static_cast<size_t>(rank + g.rope_dim)), theirs(mine.size());
  read_latent_row(g, slot_of(have, r), mine.data());
  read_latent_row(g, slot_of(want, r), theirs.data());
  const float* exact = want.latent.data != nullptr ? want.latent.row_f32(r) : theirs.data();
  std::vector<double> error;
  for (int i = 0; i < rank; ++i) {
    const double result = static_cast<double>(exact[i]);
    error.push_back(bound_of(contract, have.numerics, rank / 2 + 4, std::fabs(result), result) +
                    bf16_steps(have.numerics, 2) * std::fabs(result));
  }
  if (have.latent.data != nullptr) {
    for (int i = 0; i < rank; ++i)
      out.element("latent", r, i, static_cast<double>(have.latent.row_f32(r)[i]), static_cast<double>(exact[i]),
                  error[static_cast<size_t>(i)]);
    // The cache holds exactly the rounding of what the kernel says it holds.
    std::vector<std::byte> row(static_cast<size_t>(g.latent_row_bytes()));
    std::vector<float> rounded(mine.size());
    write_latent_row(g, have.latent.row_f32(r), mine.data() + rank, row.data());
    read_latent_row(g, row.data(), rounded.data());
    for (int i = 0; i < rank; ++i)
      out.element("cache", r, i, static_cast<double>(mine[static_cast<size_t>(i)]),
                  static_cast<double>(rounded[static_cast<size_t>(i)]), 0);
  } else {
    const std::vector<double> allowed = stored_error(g, theirs.data(), error);
    MovedCodes moved;
    for (int i = 0; i < rank; ++i) {
      const size_t at = static_cast<size_t>(i);
      out.element("cache", r, i, static_cast<double>(mine[at]), static_cast<double>(theirs[at]), allowed[at]);
      moved.add(static_cast<double>(mine[at]), static_cast<double>(theirs[at]));
    }
    if (g.latent == KvFormat::Fp8Tile128 && !have.numerics.round_bf16) moved.judge("cache", r, out);
  }
  const double cache = g.latent == KvFormat::F32 ? 0 : kBf16Step;
  const float* x = before.kv_a.row_f32(r) + rank;
  for (int i = 0; i < g.rope_dim; ++i) {
    const size_t at = static_cast<size_t>(rank) + static_cast<size_t>(i);
    const double magnitude = magnitude_of(x[i]) + magnitude_of(x[i ^ 1]);
    out.element("k_pe", r, i, static_cast<double>(mine[at]), static_cast<double>(theirs[at]),
                bound_of(contract, {}, 2, magnitude, 0) + bf16_steps(have.numerics, 2) * magnitude +
                    cache * magnitude_of(theirs[at]));
  }
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// One row of the router: its choice and weights against those that follow from the reference's logits.
class RouterRow {
 public:
  RouterRow(const Contract& contract, const RouterArgs& have, const RouterArgs& want, std::vector<double> magnitude,
            int64_t row)
      : have_(have), want_(want), row_(row), count_(have.logits.dim(1)), k_(have.experts.dim(1)) {
    for (int64_t e = 0; e < count_; ++e)
      error_.push_back(
          bound_of(contract, {}, have.x.dim(1), magnitude[static_cast<size_t>(row * count_ + e)], logit(e)));
  }

  void judge(Comparison& out) const {
    for (int64_t e = 0; e < count_; ++e)
      out.element("logits", row_, e, static_cast<double>(have_.logits.row_f32(row_)[e]), logit(e), error(e));
    const int32_t* chosen = have_.experts.row_i32(row_);
    std::vector<int32_t> sorted(chosen, chosen + k_);
    std::sort(sorted.begin(), sorted.end());
    if (sorted.front() < 0 || sorted.back() >= count_ ||
        std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      return out.broken({.tensor = "experts", .kind = "choice", .row = row_});  // not k different ones
    judge_choice(out);
    judge_weights(out);
  }

 private:
  double logit(int64_t e) const { return static_cast<double>(want_.logits.row_f32(row_)[e]); }
  double error(int64_t e) const { return error_[static_cast<size_t>(e)]; }
  double bias(int64_t e) const { return have_.bias != nullptr ? static_cast<double>(have_.bias[e]) : 0.0; }
  // Of a sigmoid, whose slope is at most 1/4.
  double score_error(int64_t e) const { return error(e) / 4 + 4 * unit_roundoff(DType::F32); }

  // Where no group limit plays in, the i-th best scores can differ by their error only. Equal logits and biases are a
  // tie for every kernel: it goes to the lower id.
  void judge_choice(Comparison& out) const {
    double allowed = 4 * unit_roundoff(DType::F32);
    for (int64_t e = 0; e < count_; ++e)
      allowed = std::max(allowed, score_error(e) + 4 * unit_roundoff(DType::F32) * std::fabs(bias(e)));
    const float* mine_logits = have_.logits.row_f32(row_);
    const bool exact = std::equal(mine_logits, mine_logits + count_, want_.logits.row_f32(row_));
    for (int64_t i = 0; i < k_; ++i) {
      const int32_t mine = have_.experts.row_i32(row_)[i];
      const int32_t theirs = want_.experts.row_i32(row_)[i];
      if (mine == theirs) continue;
      const double gap = std::fabs(sigmoid(logit(mine)) + bias(mine) - sigmoid(logit(theirs)) - bias(theirs));
      const bool tie = exact && logit(mine) == logit(theirs) && bias(mine) == bias(theirs);
      if (tie || (have_.n_group == 1 && !(gap <= 2 * allowed)))
        out.broken({.tensor = "experts",
                    .kind = "choice",
                    .row = row_,
                    .column = i,
                    .have = static_cast<double>(mine),
                    .want = static_cast<double>(theirs)});
    }
  }

  void judge_weights(Comparison& out) const {
    double sum = 0;
    double sum_error = 0;
    for (int64_t i = 0; i < k_; ++i) {
      const int32_t e = have_.experts.row_i32(row_)[i];
      sum += sigmoid(logit(e));
      sum_error += score_error(e);
    }
    const double factor = static_cast<double>(have_.routed_scaling_factor);
    const double norm = have_.norm_topk_prob ? sum + 1e-20 : 1.0;
    for (int64_t i = 0; i < k_; ++i) {
      const double weight = sigmoid(logit(have_.experts.row_i32(row_)[i])) / norm * factor;
      out.element("weights", row_, i, static_cast<double>(have_.weights.row_f32(row_)[i]), weight,
                  factor * 2 * sum_error / norm + 4 * unit_roundoff(DType::F32) * weight);
    }
  }

  const RouterArgs& have_;
  const RouterArgs& want_;
  int64_t row_, count_, k_;
  std::vector<double> error_{};
};

}  // namespace

void judge_op(const Contract& contract, const KvWriteArgs& before, const KvWriteArgs& have, const KvWriteArgs& want,
              Comparison& out) {
  for (int64_t r = 0; r < have.paging.rows; ++r)
    if (have.paging.sequence[r] >= 0) judge_latent_row(contract, before, have, want, r, out);
}

void judge_op(const Contract& contract, const IndexQueryArgs& before, const IndexQueryArgs& have,
              const IndexQueryArgs& want, Comparison& out) {
  const int dim = have.head_dim;
  const bool fp8 = have.index_key == IndexKeyFormat::Fp8;
  for (int64_t r = 0; r < have.q.dim(0); ++r) {
    MovedCodes moved;
    for (int h = 0; h < have.heads; ++h) {
      const float* x = before.q.row_f32(r) + int64_t{h} * dim;
      const float* theirs = want.q.row_f32(r) + int64_t{h} * dim;
      std::vector<double> magnitude;
      double amax = 1e-4;
      for (int i = 0; i < dim; ++i) {
        magnitude.push_back(magnitude_of(x[i]));
        amax = std::max(amax, magnitude_of(theirs[i]));
      }
      magnitude = turned(have, std::move(magnitude));
      for (int i = 0; i < dim; ++i) {
        const double own = magnitude[static_cast<size_t>(i)];
        const double result = static_cast<double>(theirs[i]);
        const double mine = static_cast<double>(have.q.row_f32(r)[int64_t{h} * dim + i]);
        double allowed = bound_of(contract, have.numerics, 2 + (have.numerics.index_hadamard ? dim : 0), own, result) +
                         bf16_steps(have.numerics, 3) * own;
        if (fp8) allowed += fp8_step(result, amax);
        out.element("q", r, int64_t{h} * dim + i, mine, result, allowed);
        if (amax > 1e-4) moved.add(mine, result);
      }
    }
    if (fp8) moved.judge("q", r, out);
  }
}

// LayerNorm: the mean is off by relative * mean |x|, the scale by half the variance's relative error.
void judge_op(const Contract& contract, const IndexKeyWriteArgs& before, const IndexKeyWriteArgs& have,
              const IndexKeyWriteArgs& want, Comparison& out) {
  const KvGeometry& g = have.kv.geometry;
  const int dim = g.index_head_dim;
  std::vector<std::byte> page(static_cast<size_t>(g.index_page_bytes()));
  std::vector<float> stored(static_cast<size_t>(dim)), rounded(stored.size());
  for (int64_t r = 0; r < have.paging.rows; ++r) {
    if (have.paging.sequence[r] < 0) continue;
    const float* x = before.k.row_f32(r);
    double mean = 0, mean_abs = 0, variance = 0;
    for (int i = 0; i < dim; ++i) mean += static_cast<double>(x[i]) / dim, mean_abs += magnitude_of(x[i]) / dim;
    for (int i = 0; i < dim; ++i)
      variance += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean) / dim;
    const double scale = 1 / std::sqrt(variance + have.eps);
    std::vector<double> magnitude;
    for (int i = 0; i < dim; ++i) {
      const double centred = std::fabs(static_cast<double>(x[i]) - mean) + magnitude_of(x[i]) + mean_abs;
      magnitude.push_back(centred * scale * magnitude_of(have.weight[i]) + magnitude_of(have.bias[i]));
    }
    magnitude = turned(have, std::move(magnitude));
    const int32_t position = have.paging.positions[r];
    read_index_key(g, index_page(have.kv, have.paging, have.paging.sequence[r], position),
                   position % have.paging.page_tokens, stored.data());
    write_index_key(g, have.k.row_f32(r), page.data(), 0);
    read_index_key(g, page.data(), 0, rounded.data());
    for (int i = 0; i < dim; ++i) {
      const size_t at = static_cast<size_t>(i);
      const double result = static_cast<double>(want.k.row_f32(r)[i]);
      out.element("k", r, i, static_cast<double>(have.k.row_f32(r)[i]), result,
                  bound_of(contract, have.numerics, 2 * dim + 4, magnitude[at], result) +
                      bf16_steps(have.numerics, 4) * magnitude[at]);
      out.element("cache", r, i, static_cast<double>(stored[at]), static_cast<double>(rounded[at]), 0);
    }
  }
}

void judge_op(const Contract& contract, const RouterArgs& before, const RouterArgs& have, const RouterArgs& want,
              Comparison& out) {
  const std::vector<double> magnitude = router_magnitude(before, out.pool);
  for (int64_t r = 0; r < have.x.dim(0); ++r)
    if (have.sequence == nullptr || have.sequence[r] >= 0) RouterRow(contract, have, want, magnitude, r).judge(out);
}

}  // namespace plumb
