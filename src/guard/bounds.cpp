#include "guard/bounds.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "ops/kv_rows.h"

namespace plumb {
namespace {

// f(begin, end) over 0 ... items, shared among the pool's workers where there is one.
template <class F>
void share(ThreadPool* pool, int64_t items, F&& f) {
  if (pool == nullptr) return f(int64_t{0}, items);
  pool->parallel([&](int part, int parts) {
    const Range range = split(items, part, parts);
    f(range.begin, range.end);
  });
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

// Value and sum of magnitudes of one product of rows.
struct Sum {
  double value = 0;
  double magnitude = 0;
};

template <class X>
Sum sum_of(const X* x, const float* w, int64_t k) {
  Sum sum;
  for (int64_t i = 0; i < k; ++i) {
    const double product = static_cast<double>(x[i]) * static_cast<double>(w[i]);
    sum.value += product;
    sum.magnitude += std::fabs(product);
  }
  return sum;
}

// [rows, n] sums of magnitudes of x . w^T
std::vector<double> product_magnitude(const Tensor& x, const Weight& w, ThreadPool* pool) {
  const int64_t rows = x.dim(0);
  std::vector<double> out(static_cast<size_t>(rows * w.n()));
  share(pool, w.n(), [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(w.k()));
    for (int64_t i = begin; i < end; ++i) {
      decode_row(w.source, i, row.data());
      for (int64_t t = 0; t < rows; ++t)
        out[static_cast<size_t>(t * w.n() + i)] = sum_of(x.row_f32(t), row.data(), w.k()).magnitude;
    }
  });
  return out;
}

// H of mlp_magnitude for one row: [inter]
std::vector<double> middle_magnitude(const MlpArgs& args, const float* x, double relative, ThreadPool* pool) {
  std::vector<double> out(static_cast<size_t>(args.gate->n()));
  share(pool, args.gate->n(), [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(args.gate->k()));
    for (int64_t i = begin; i < end; ++i) {
      decode_row(args.gate->source, i, row.data());
      const Sum gate = sum_of(x, row.data(), args.gate->k());
      decode_row(args.up->source, i, row.data());
      const Sum up = sum_of(x, row.data(), args.up->k());
      const double activated = std::fabs(silu(gate.value));
      out[static_cast<size_t>(i)] = 1.1 * gate.magnitude * (std::fabs(up.value) + relative * up.magnitude) +
                                    activated * up.magnitude + activated * std::fabs(up.value);
    }
  });
  return out;
}

// One head of one row of attention.
class AttendHead {
 public:
  AttendHead(const MlaAttendArgs& args, int64_t h) : args_(args), rank_(args.kv_b->k()) {
    const int64_t rows = args.nope_dim + args.v_dim;
    kv_b_.resize(static_cast<size_t>(rows * rank_));
    for (int64_t i = 0; i < rows; ++i) decode_row(args.kv_b->source, h * rows + i, kv_b_.data() + i * rank_);
    row_.resize(static_cast<size_t>(rank_ + args.rope_dim));
  }

  // out[v], for q = nope | rope of this head.
  void magnitude(int64_t t, const float* q, double* out) {
    std::vector<double> q_lat(static_cast<size_t>(rank_));
    std::vector<double> q_abs(static_cast<size_t>(rank_));
    for (int64_t n = 0; n < args_.nope_dim; ++n) {
      for (int64_t c = 0; c < rank_; ++c) {
        const double product =
            static_cast<double>(q[n]) * static_cast<double>(kv_b_[static_cast<size_t>(n * rank_ + c)]);
        q_lat[static_cast<size_t>(c)] += product;
        q_abs[static_cast<size_t>(c)] += std::fabs(product);
      }
    }
    std::vector<double> scores;
    std::vector<int32_t> positions;
    double largest_magnitude = 0;
    for (int64_t i = 0; i < args_.topk_indices.dim(1); ++i) {
      const int32_t j = args_.topk_indices.row_i32(t)[i];
      if (j < 0 || j > args_.paging.positions[t]) continue;
      read(t, j);
      const Sum rope = sum_of(q + args_.nope_dim, row_.data() + rank_, args_.rope_dim);
      double magnitude = rope.magnitude;
      for (int64_t c = 0; c < rank_; ++c) {
        magnitude += q_abs[static_cast<size_t>(c)] * std::fabs(static_cast<double>(row_[static_cast<size_t>(c)]));
      }
      const double scale = static_cast<double>(args_.softmax_scale);
      scores.push_back((sum_of(q_lat.data(), row_.data(), rank_).value + rope.value) * scale);
      positions.push_back(j);
      largest_magnitude = std::max(largest_magnitude, magnitude * scale);
    }
    if (!scores.empty()) values(t, scores, positions, 1 + 2 * largest_magnitude, out);
  }

 private:
  void read(int64_t t, int32_t position) {
    read_latent_row(args_.kv.geometry, latent_row(args_.kv, args_.paging, args_.paging.sequence[t], position),
                    row_.data());
  }

  void values(int64_t t, const std::vector<double>& scores, const std::vector<int32_t>& positions, double factor,
              double* out) {
    const double largest = *std::max_element(scores.begin(), scores.end());
    std::vector<double> o_abs(static_cast<size_t>(rank_));
    double total = 0;
    for (size_t i = 0; i < scores.size(); ++i) {
      const double p = std::exp(scores[i] - largest);
      total += p;
      read(t, positions[i]);
      for (int64_t c = 0; c < rank_; ++c) {
        o_abs[static_cast<size_t>(c)] += p * std::fabs(static_cast<double>(row_[static_cast<size_t>(c)]));
      }
    }
    for (int64_t v = 0; v < args_.v_dim; ++v) {
      out[v] = sum_of(o_abs.data(), kv_b_.data() + (args_.nope_dim + v) * rank_, rank_).magnitude / total * factor;
    }
  }

  const MlaAttendArgs& args_;
  int64_t rank_;
  std::vector<float> kv_b_;
  std::vector<float> row_;
};

}  // namespace

double relative_of(const Contract& contract, int64_t terms) {
  return contract.error_bound.c * unit_roundoff(contract.error_bound.unit) +
         static_cast<double>(terms) * unit_roundoff(contract.accumulate);
}

double bound_of(const Contract& contract, const Numerics& numerics, int64_t terms, double magnitude, double result) {
  const double output = numerics.round_bf16 ? kBf16Step : 2 * unit_roundoff(DType::F32);
  return relative_of(contract, terms) * magnitude + output * std::fabs(result) + contract.error_bound.floor +
         static_cast<double>(terms + 1) * 0x1p-149;
}

std::vector<double> linear_magnitude(const LinearArgs& args, ThreadPool* pool) {
  std::vector<double> out = product_magnitude(args.x, *args.w, pool);
  if (args.w->bias == nullptr) return out;
  const size_t n = static_cast<size_t>(args.w->n());
  for (size_t i = 0; i < out.size(); ++i) out[i] += std::fabs(static_cast<double>(args.w->bias[i % n]));
  return out;
}

std::vector<double> router_magnitude(const RouterArgs& args, ThreadPool* pool) {
  return product_magnitude(args.x, *args.gate, pool);
}

std::vector<double> mlp_magnitude(const MlpArgs& args, double relative, ThreadPool* pool) {
  const int64_t hidden = args.down->n();
  std::vector<double> out(static_cast<size_t>(args.x.dim(0) * hidden));
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    const std::vector<double> middle = middle_magnitude(args, args.x.row_f32(t), relative, pool);
    share(pool, hidden, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(args.down->k()));
      for (int64_t i = begin; i < end; ++i) {
        decode_row(args.down->source, i, row.data());
        out[static_cast<size_t>(t * hidden + i)] = sum_of(middle.data(), row.data(), args.down->k()).magnitude;
      }
    });
  }
  return out;
}

std::vector<double> moe_magnitude(const MoeArgs& args, double relative, ThreadPool* pool) {
  const int64_t hidden = args.x.dim(1);
  std::vector<double> out(static_cast<size_t>(args.x.dim(0) * hidden));
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    double* row = out.data() + t * hidden;
    for (int64_t slot = 0; slot < args.experts.dim(1); ++slot) {
      const int32_t e = args.experts.row_i32(t)[slot] - args.first_expert;
      if (e < 0 || e >= static_cast<int64_t>(args.gate.size())) continue;
      const size_t expert = static_cast<size_t>(e);
      const MlpArgs one{
          .gate = &args.gate[expert], .up = &args.up[expert], .down = &args.down[expert], .x = args.x.slice(t, 1)};
      const std::vector<double> part = mlp_magnitude(one, relative, pool);
      const double weight = std::fabs(static_cast<double>(args.weights.row_f32(t)[slot]));
      for (int64_t i = 0; i < hidden; ++i) row[i] += weight * part[static_cast<size_t>(i)];
    }
    if (args.shared.data == nullptr) continue;
    for (int64_t i = 0; i < hidden; ++i) row[i] += std::fabs(static_cast<double>(args.shared.row_f32(t)[i]));
  }
  return out;
}

std::vector<double> indexer_magnitude(const IndexerLogitsArgs& args, ThreadPool* pool) {
  const int64_t columns = args.logits.dim(1);
  std::vector<double> out(static_cast<size_t>(args.logits.dim(0) * columns));
  const double scale = static_cast<double>(args.weight_scale) * static_cast<double>(args.softmax_scale);
  for (int64_t r = 0; r < args.paging.rows; ++r) {
    const int32_t sequence = args.paging.sequence[r];
    if (sequence < 0) continue;
    share(pool, std::min<int64_t>(args.paging.positions[r] + 1, columns), [&](int64_t begin, int64_t end) {
      std::vector<float> key(static_cast<size_t>(args.head_dim));
      for (auto j = static_cast<int32_t>(begin); j < end; ++j) {
        read_index_key(args.kv.geometry, index_page(args.kv, args.paging, sequence, j), j % args.paging.page_tokens,
                       key.data());
        double sum = 0;
        for (int h = 0; h < args.heads; ++h) {
          const float* q = args.q.row_f32(r) + int64_t{h} * args.head_dim;
          sum += std::fabs(static_cast<double>(args.weights.row_f32(r)[h])) *
                 sum_of(q, key.data(), args.head_dim).magnitude;
        }
        out[static_cast<size_t>(r * columns + j)] = sum * std::fabs(scale);
      }
    });
  }
  return out;
}

std::vector<double> attend_magnitude(const MlaAttendArgs& args, ThreadPool* pool) {
  const int64_t width = int64_t{args.heads} * args.v_dim;
  std::vector<double> out(static_cast<size_t>(args.paging.rows * width));
  share(pool, args.heads, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      AttendHead head(args, h);
      for (int64_t t = 0; t < args.paging.rows; ++t) {
        if (args.paging.sequence[t] < 0) continue;
        head.magnitude(t, args.q.row_f32(t) + h * (args.nope_dim + args.rope_dim),
                       out.data() + t * width + h * args.v_dim);
      }
    }
  });
  return out;
}

}  // namespace plumb
