// Sparse MLA in absorbed form, all of it in float64 (model.md 3.6).
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/common.h"

namespace plumb::reference {
namespace {

// Scratch of one worker, and the kv_b rows of the head it is at.
struct Head {
  explicit Head(const MlaAttendArgs& args)
      : rank(args.kv_b->k()),
        kv_b(static_cast<size_t>((args.nope_dim + args.v_dim) * rank)),
        q_lat(static_cast<size_t>(rank)),
        o_lat(static_cast<size_t>(rank)),
        row(static_cast<size_t>(rank + args.rope_dim)) {}

  void load(const MlaAttendArgs& args, int64_t h) {
    const int64_t rows = args.nope_dim + args.v_dim;
    for (int64_t i = 0; i < rows; ++i) decode_row(args.kv_b->source, h * rows + i, kv_b.data() + i * rank);
  }

  int64_t rank;
  std::vector<float> kv_b;  // [nope + v, rank]
  std::vector<double> q_lat;
  std::vector<double> o_lat;
  std::vector<float> row;
  std::vector<double> score;
  std::vector<int32_t> position;
};

// q_lat[c] = sum over n of W_UK[n, c] q_nope[n]
void absorb_query(const MlaAttendArgs& args, const float* q, Head& head) {
  std::fill(head.q_lat.begin(), head.q_lat.end(), 0.0);
  for (int64_t n = 0; n < args.nope_dim; ++n) {
    const double value = static_cast<double>(q[n]);
    const float* w = head.kv_b.data() + n * head.rank;
    for (int64_t c = 0; c < head.rank; ++c) head.q_lat[static_cast<size_t>(c)] += value * static_cast<double>(w[c]);
  }
}

void read_row(const MlaAttendArgs& args, int32_t sequence, int32_t position, Head& head) {
  read_latent_row(args.kv.geometry, latent_row(args.kv, args.paging, sequence, position), head.row.data());
}

// o_lat = sum over the selected j of softmax_j c_j. False when nothing is selected.
bool attend_latent(const MlaAttendArgs& args, int64_t t, const float* q, Head& head) {
  const int32_t sequence = args.paging.sequence[t];
  head.score.clear();
  head.position.clear();
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < args.topk_indices.dim(1); ++i) {
    const int32_t j = args.topk_indices.row_i32(t)[i];
    if (j < 0 || j > args.paging.positions[t]) continue;
    read_row(args, sequence, j, head);
    const double s = (dot(head.q_lat.data(), head.row.data(), head.rank) +
                      dot(q + args.nope_dim, head.row.data() + head.rank, args.rope_dim)) *
                     static_cast<double>(args.softmax_scale);
    if (s > largest) largest = s;
    head.score.push_back(s);
    head.position.push_back(j);
  }
  if (head.score.empty()) return false;
  double total = 0;
  std::fill(head.o_lat.begin(), head.o_lat.end(), 0.0);
  for (size_t i = 0; i < head.score.size(); ++i) {
    const double p = std::exp(head.score[i] - largest);
    total += p;
    read_row(args, sequence, head.position[i], head);
    for (int64_t c = 0; c < head.rank; ++c) {
      head.o_lat[static_cast<size_t>(c)] += p * static_cast<double>(head.row[static_cast<size_t>(c)]);
    }
  }
  for (double& value : head.o_lat) value /= total;
  return true;
}

void attend_row(const MlaAttendArgs& args, int64_t t, int64_t h, Head& head) {
  const float* q = args.q.row_f32(t) + h * (args.nope_dim + args.rope_dim);
  float* out = args.out.row_f32(t) + h * args.v_dim;
  absorb_query(args, q, head);
  if (!attend_latent(args, t, q, head)) {
    std::fill_n(out, args.v_dim, 0.0f);
    return;
  }
  for (int64_t v = 0; v < args.v_dim; ++v) {
    const float* w = head.kv_b.data() + (args.nope_dim + v) * head.rank;
    out[v] = round_output(dot(head.o_lat.data(), w, head.rank), args.numerics);
  }
}

void mla_attend(const MlaAttendArgs& args, Stream& stream) {
  const int64_t rows = args.paging.rows;
  // Head by head, so that a worker decodes each head's part of kv_b once for all rows.
  for_ranges(stream, args.heads * rows, [&](int64_t begin, int64_t end) {
    Head head(args);
    int64_t loaded = -1;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t h = item / rows;
      const int64_t t = item % rows;
      if (args.paging.sequence[t] < 0) continue;
      if (h != loaded) head.load(args, h);
      loaded = h;
      attend_row(args, t, h, head);
    }
  });
}

}  // namespace

void add_attend_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<MlaAttendArgs, mla_attend>(reference_contract(Op::MlaAttend)));
}

}  // namespace plumb::reference
