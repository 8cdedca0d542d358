#include "guard/op_judge.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

#include "guard/bounds.h"
#include "guard/judge_cache.h"

namespace plumb {

std::string Judgement::to_string() const {
  std::ostringstream text;
  const Deviation& d = deviation;
  text << d.tensor << "[" << d.row << ", " << d.column << "]: " << d.have << " in place of " << d.want;
  if (std::string_view(d.kind) == "drift") text << ", allowed are " << d.bound;
  text << " (" << outside << " of " << compared << " outside)";
  return text.str();
}

void Comparison::note(const Deviation& deviation, double ratio) {
  ++result_.outside;
  if (result_.outside > 1 && ratio <= result_.worst) return;
  result_.deviation = deviation;
  result_.worst = std::max(result_.worst, ratio);
}

void Comparison::element(const char* tensor, int64_t row, int64_t column, double have, double want, double bound) {
  ++result_.compared;
  if (have == want || (std::isnan(have) && std::isnan(want))) return;
  const double difference = std::fabs(have - want);
  const double ratio = difference / bound;
  if (difference <= bound) {
    result_.worst = std::max(result_.worst, ratio);
    return;
  }
  const char* kind = std::isnan(have) ? "nan" : std::isinf(have) ? "inf" : "drift";
  note({.tensor = tensor,
        .kind = kind,
        .row = row,
        .column = column,
        .have = have,
        .want = want,
        .bound = std::isnan(bound) ? 0 : bound},
       std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio);
}

void Comparison::broken(const Deviation& deviation) {
  ++result_.compared;
  note(deviation, std::numeric_limits<double>::infinity());
}

namespace {

double magnitude_at(const std::vector<double>& magnitude, int64_t row, int64_t columns, int64_t column) {
  return magnitude[static_cast<size_t>(row * columns + column)];
}

// bound(row, column, result)
template <class Bound>
void compare_rows(const char* name, const Tensor& have, const Tensor& want, Bound bound, Comparison& out) {
  for (int64_t r = 0; r < have.dim(0); ++r) {
    for (int64_t c = 0; c < have.dim(1); ++c) {
      const double result = static_cast<double>(want.row_f32(r)[c]);
      out.element(name, r, c, static_cast<double>(have.row_f32(r)[c]), result, bound(r, c, result));
    }
  }
}

double no_error(int64_t, int64_t, double) { return 0; }

// A norm's relative error: half of that of the mean of squares (all terms positive), and a few roundings.
double norm_bound(const Contract& contract, const Numerics& numerics, int64_t n, double result) {
  const double steps = numerics.norm_two_roundings ? 2 : 0;
  return bound_of(contract, numerics, n / 2 + 4, std::fabs(result), result) + steps * kBf16Step / 2 * std::fabs(result);
}

void judge_op(const Contract&, const EmbedArgs&, const EmbedArgs& have, const EmbedArgs& want, Comparison& out) {
  compare_rows("y", have.y, want.y, no_error, out);  // decoding is exact
}

void judge_op(const Contract& contract, const RmsNormArgs&, const RmsNormArgs& have, const RmsNormArgs& want,
              Comparison& out) {
  compare_rows(
      "y", have.y, want.y,
      [&](int64_t, int64_t, double result) { return norm_bound(contract, have.numerics, have.y.dim(1), result); }, out);
}

void judge_op(const Contract& contract, const AddRmsNormArgs&, const AddRmsNormArgs& have, const AddRmsNormArgs& want,
              Comparison& out) {
  compare_rows("residual", have.residual, want.residual, no_error, out);  // one addition, correctly rounded
  compare_rows(
      "y", have.y, want.y,
      [&](int64_t, int64_t, double result) { return norm_bound(contract, have.numerics, have.y.dim(1), result); }, out);
}

void judge_op(const Contract& contract, const LinearArgs& before, const LinearArgs& have, const LinearArgs& want,
              Comparison& out) {
  const std::vector<double> magnitude = linear_magnitude(before, out.pool);
  const int64_t n = have.y.dim(1);
  compare_rows(
      "y", have.y, want.y,
      [&](int64_t r, int64_t c, double result) {
        return bound_of(contract, have.numerics, before.x.dim(1), magnitude_at(magnitude, r, n, c), result);
      },
      out);
}

void judge_op(const Contract& contract, const RopeArgs& before, const RopeArgs& have, const RopeArgs& want,
              Comparison& out) {
  const auto bound = [&](int64_t r, int64_t c, double result) {
    const int i = static_cast<int>(c % have.head_dim) - have.offset;
    if (i < 0 || i >= have.rope_dim) return 0.0;  // left alone
    const int64_t partner = have.interleaved        ? c + (i % 2 == 0 ? 1 : -1)
                            : i < have.rope_dim / 2 ? c + have.rope_dim / 2
                                                    : c - have.rope_dim / 2;
    const float* x = before.x.row_f32(r);
    const double magnitude = std::fabs(static_cast<double>(x[c])) + std::fabs(static_cast<double>(x[partner]));
    return bound_of(contract, have.numerics, 2, magnitude, result) +
           (have.numerics.round_bf16 ? kBf16Step : 0) * magnitude;
  };
  compare_rows("x", have.x, want.x, bound, out);
}

void judge_op(const Contract& contract, const IndexerLogitsArgs& before, const IndexerLogitsArgs& have,
              const IndexerLogitsArgs& want, Comparison& out) {
  const std::vector<double> magnitude = indexer_magnitude(before, out.pool);
  const int64_t columns = have.logits.dim(1);
  for (int64_t r = 0; r < have.paging.rows; ++r) {
    if (have.paging.sequence[r] < 0) continue;
    for (int64_t c = 0; c < columns; ++c) {
      const double result = static_cast<double>(want.logits.row_f32(r)[c]);
      const double bound = std::isinf(result) ? 0
                                              : bound_of(contract, {}, have.head_dim + have.heads + 4,
                                                         magnitude_at(magnitude, r, columns, c), result);
      out.element("logits", r, c, static_cast<double>(have.logits.row_f32(r)[c]), result, bound);
    }
  }
}

// The same scores, so the same set; equal scores go to the lower position.
void judge_op(const Contract&, const TopKArgs&, const TopKArgs& have, const TopKArgs& want, Comparison& out) {
  for (int64_t r = 0; r < have.indices.dim(0); ++r) {
    const int32_t* mine = have.indices.row_i32(r);
    const int32_t* theirs = want.indices.row_i32(r);
    for (int64_t i = 0; i < have.topk; ++i) {
      if (mine[i] == theirs[i])
        out.element("indices", r, i, 0, 0, 0);
      else
        out.broken({.tensor = "indices",
                    .kind = "choice",
                    .row = r,
                    .column = i,
                    .have = static_cast<double>(mine[i]),
                    .want = static_cast<double>(theirs[i])});
    }
  }
}

void judge_op(const Contract& contract, const MlaAttendArgs& before, const MlaAttendArgs& have,
              const MlaAttendArgs& want, Comparison& out) {
  const std::vector<double> magnitude = attend_magnitude(before, out.pool);
  const int64_t width = int64_t{have.heads} * have.v_dim;
  const int64_t terms = have.kv_b->k() + std::max<int64_t>(have.nope_dim, have.topk_indices.dim(1));
  for (int64_t r = 0; r < have.paging.rows; ++r) {
    if (have.paging.sequence[r] < 0) continue;
    for (int64_t c = 0; c < width; ++c) {
      const double result = static_cast<double>(want.out.row_f32(r)[c]);
      out.element("out", r, c, static_cast<double>(have.out.row_f32(r)[c]), result,
                  bound_of(contract, have.numerics, terms, magnitude_at(magnitude, r, width, c), result));
    }
  }
}

// With rounding to bf16 what lies between may round another way where the sums differ: two bf16 steps more.
void judge_op(const Contract& contract, const MlpArgs& before, const MlpArgs& have, const MlpArgs& want,
              Comparison& out) {
  const double relative = relative_of(contract, std::max(have.gate->n(), have.gate->k())) +
                          (have.numerics.round_bf16 ? 4 * kBf16Step / 2 : 0.0);
  const std::vector<double> magnitude = mlp_magnitude(before, relative, out.pool);
  const int64_t n = have.y.dim(1);
  compare_rows(
      "y", have.y, want.y,
      [&](int64_t r, int64_t c, double result) {
        return bound_of(contract, have.numerics, 0, 0, result) + relative * magnitude_at(magnitude, r, n, c);
      },
      out);
}

void judge_op(const Contract& contract, const MoeArgs& before, const MoeArgs& have, const MoeArgs& want,
              Comparison& out) {
  const Weight& gate = have.gate.front();
  const double relative = relative_of(contract, std::max(gate.n(), gate.k()) + have.experts.dim(1)) +
                          (have.numerics.round_bf16 ? 6 * kBf16Step / 2 : 0.0);
  const std::vector<double> magnitude = moe_magnitude(before, relative, out.pool);
  const int64_t n = have.y.dim(1);
  compare_rows(
      "y", have.y, want.y,
      [&](int64_t r, int64_t c, double result) {
        return bound_of(contract, have.numerics, 0, 0, result) + relative * magnitude_at(magnitude, r, n, c);
      },
      out);
}

void judge_op(const Contract&, const GatherRowsArgs&, const GatherRowsArgs& have, const GatherRowsArgs& want,
              Comparison& out) {
  compare_rows("y", have.y, want.y, no_error, out);
}

void judge_op(const Contract&, const FiniteRowsArgs&, const FiniteRowsArgs& have, const FiniteRowsArgs& want,
              Comparison& out) {
  for (int64_t r = 0; r < have.finite.dim(0); ++r)
    out.element("finite", r, 0, static_cast<double>(*have.finite.row_i32(r)),
                static_cast<double>(*want.finite.row_i32(r)), 0);
}

// Whole sets, kept from one step to the next: what they do to drafts is seen in the text.
void judge_op(const Contract&, const DraftSetArgs&, const DraftSetArgs&, const DraftSetArgs&, Comparison&) {}

void judge_op(const Contract&, const SampleArgs&, const SampleArgs& have, const SampleArgs& want, Comparison& out) {
  for (size_t r = 0; r < have.out.size(); ++r) {
    const SampleOut& mine = have.out[r];
    const SampleOut& theirs = want.out[r];
    const auto row = static_cast<int64_t>(r);
    const bool same_draw = mine.id == theirs.id || have.rows[r].temperature > 0;
    if (mine.poisoned != theirs.poisoned || !same_draw)
      out.broken({.tensor = "id",
                  .kind = "choice",
                  .row = row,
                  .have = static_cast<double>(mine.id),
                  .want = static_cast<double>(theirs.id)});
    if (theirs.poisoned || mine.id != theirs.id || have.rows[r].logprobs < 0) continue;
    const double logprob = static_cast<double>(theirs.logprob);
    out.element("logprob", row, 0, static_cast<double>(mine.logprob), logprob, 1e-5 + 2e-6 * std::fabs(logprob));
  }
}

// What the other ranks gave is not here.
void judge_op(const Contract&, const AllReduceArgs&, const AllReduceArgs&, const AllReduceArgs&, Comparison&) {}
void judge_op(const Contract&, const GatherColumnsArgs&, const GatherColumnsArgs&, const GatherColumnsArgs&,
              Comparison&) {}

template <class Args>
Judgement judge_typed(const Contract& contract, const AnyArgs& before, const AnyArgs& have, const AnyArgs& want,
                      ThreadPool* pool) {
  Comparison out(pool);
  judge_op(contract, std::get<Args>(before), std::get<Args>(have), std::get<Args>(want), out);
  return out.result();
}

}  // namespace

Judgement judge_outputs(const Contract& contract, const AnyArgs& before, const AnyArgs& have, const AnyArgs& want,
                        ThreadPool* pool) {
  return std::visit(
      [&](const auto& args) { return judge_typed<std::decay_t<decltype(args)>>(contract, before, have, want, pool); },
      have);
}

}  // namespace plumb
