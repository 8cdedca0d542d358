// Ops that work on a row alone: embedding, norms, gathering.
#include <algorithm>
#include <cmath>

#include "kernels/reference/common.h"

namespace plumb::reference {

void rms_norm_row(const NormRow& row, const Numerics& numerics) {
  double squares = 0;
  for (int64_t i = 0; i < row.n; ++i) squares += static_cast<double>(row.x[i]) * static_cast<double>(row.x[i]);
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(row.n) + row.eps);
  const bool twice = numerics.round_bf16 && numerics.norm_two_roundings;
  for (int64_t i = 0; i < row.n; ++i) {
    double value = static_cast<double>(row.x[i]) * scale;
    if (twice) value = static_cast<double>(round_output(value, numerics));
    row.y[i] = round_output(value * static_cast<double>(row.weight[i]), numerics);
  }
}

namespace {

// An id outside the table belongs to a padding row, whose output nobody reads: zeros.
void embed(const EmbedArgs& args, Stream& stream) {
  for_ranges(stream, args.y.dim(0), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* y = args.y.row_f32(t);
      const int32_t id = args.ids[t];
      if (id < 0 || id >= args.table->n()) {
        std::fill_n(y, args.table->k(), 0.0f);
        continue;
      }
      decode_row(args.table->source, id, y);
      if (args.numerics.round_bf16) std::transform(y, y + args.table->k(), y, round_bf16);
    }
  });
}

void rms_norm(const RmsNormArgs& args, Stream& stream) {
  for_ranges(stream, args.x.dim(0), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      rms_norm_row(
          {.x = args.x.row_f32(t), .weight = args.weight, .y = args.y.row_f32(t), .n = args.x.dim(1), .eps = args.eps},
          args.numerics);
    }
  });
}

void add_rms_norm(const AddRmsNormArgs& args, Stream& stream) {
  const int64_t n = args.residual.dim(1);
  for_ranges(stream, args.residual.dim(0), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* residual = args.residual.row_f32(t);
      const float* delta = args.delta.row_f32(t);
      for (int64_t i = 0; i < n; ++i) {
        residual[i] = round_output(static_cast<double>(residual[i]) + static_cast<double>(delta[i]), args.numerics);
      }
      rms_norm_row({.x = residual, .weight = args.weight, .y = args.y.row_f32(t), .n = n, .eps = args.eps},
                   args.numerics);
    }
  });
}

void gather_rows(const GatherRowsArgs& args, Stream& stream) {
  for_ranges(stream, args.y.dim(0), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::copy_n(args.x.row_f32(args.rows[i]), args.y.dim(1), args.y.row_f32(i));
  });
}

void finite_rows(const FiniteRowsArgs& args, Stream& stream) {
  for_ranges(stream, args.x.dim(0), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = args.x.row_f32(t);
      *args.finite.row_i32(t) = std::all_of(x, x + args.x.dim(1), [](float v) { return std::isfinite(v); }) ? 1 : 0;
    }
  });
}

}  // namespace

void add_row_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<EmbedArgs, embed>(reference_contract(Op::Embed)));
  out.push_back(make_kernel<RmsNormArgs, rms_norm>(reference_contract(Op::RmsNorm)));
  out.push_back(make_kernel<AddRmsNormArgs, add_rms_norm>(reference_contract(Op::AddRmsNorm)));
  out.push_back(make_kernel<GatherRowsArgs, gather_rows>(reference_contract(Op::GatherRows)));
  out.push_back(make_kernel<FiniteRowsArgs, finite_rows>(reference_contract(Op::FiniteRows)));
}

}  // namespace plumb::reference
