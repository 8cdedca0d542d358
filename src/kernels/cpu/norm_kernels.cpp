// Ops on a row alone: embedding, norms, gathering. A sum over a row is taken lane by lane, then over the lanes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/norm.h"
#include "kernels/cpu/op_kernels.h"
#include "kernels/cpu/widen.h"

namespace plumb::cpu {
namespace {

// f(i, count) with whole vectors, then f with what is left.
float sum_of_squares(const float* x, int64_t n) {
  Vec sum = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = madd(load(x + i), load(x + i), sum);
  alignas(64) float rest[kLanes] = {};
  std::copy_n(x + i, n - i, rest);
  sum = madd(load(rest), load(rest), sum);
  return sum_lanes(sum);
}

Vec scaled(Vec x, float scale, Vec weight, const Numerics& numerics) {
  if (!numerics.round_bf16) return x * scale * weight;
  const Vec once = numerics.norm_two_roundings ? to_bf16(x * scale) : x * scale;
  return to_bf16(once * weight);
}

}  // namespace

void norm_row(const NormJob& job, const Numerics& numerics) {
  const float mean = sum_of_squares(job.x, job.n) / static_cast<float>(job.n);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(mean) + job.eps));
  int64_t i = 0;
  for (; i + kLanes <= job.n; i += kLanes)
    store(job.y + i, scaled(load(job.x + i), scale, load(job.weight + i), numerics));
  if (i == job.n) return;
  alignas(64) float x[kLanes] = {};
  alignas(64) float weight[kLanes] = {};
  std::copy_n(job.x + i, job.n - i, x);
  std::copy_n(job.weight + i, job.n - i, weight);
  store(x, scaled(load(x), scale, load(weight), numerics));
  std::copy_n(x, job.n - i, job.y + i);
}

namespace {

void rms_norm(const RmsNormArgs& args, Stream& stream) {
  for_each_row(stream, args.x.dim(0), [&](int64_t t) {
    norm_row(
        {.x = args.x.row_f32(t), .weight = args.weight, .y = args.y.row_f32(t), .n = args.x.dim(1), .eps = args.eps},
        args.numerics);
  });
}

void add_rms_norm(const AddRmsNormArgs& args, Stream& stream) {
  const int64_t n = args.residual.dim(1);
  for_each_row(stream, args.residual.dim(0), [&](int64_t t) {
    float* residual = args.residual.row_f32(t);
    const float* delta = args.delta.row_f32(t);
    if (args.numerics.round_bf16) {
      for (int64_t i = 0; i < n; ++i) residual[i] = round_bf16(residual[i] + delta[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) residual[i] += delta[i];
    }
    norm_row({.x = residual, .weight = args.weight, .y = args.y.row_f32(t), .n = n, .eps = args.eps}, args.numerics);
  });
}

void embed(const EmbedArgs& args, Stream& stream) {
  const int64_t n = args.table->k();
  for_each_row(stream, args.y.dim(0), [&](int64_t t) {
    float* y = args.y.row_f32(t);
    const int32_t id = args.ids[t];
    if (id < 0 || id >= args.table->n()) {  // of a padding row, whose output nobody reads
      std::fill_n(y, n, 0.0f);
      return;
    }
    decode_row(args.table->source, id, y);
    if (args.numerics.round_bf16) std::transform(y, y + n, y, [](float x) { return round_bf16(x); });
  });
}

void gather_rows(const GatherRowsArgs& args, Stream& stream) {
  for_each_row(stream, args.y.dim(0), [&](int64_t i) {
    std::memcpy(args.y.row_f32(i), args.x.row_f32(args.rows[i]), static_cast<size_t>(args.y.dim(1)) * sizeof(float));
  });
}

// The exponent of infinities and NaNs is all ones.
void finite_rows(const FiniteRowsArgs& args, Stream& stream) {
  for_each_row(stream, args.x.dim(0), [&](int64_t t) {
    const float* x = args.x.row_f32(t);
    uint32_t bad = 0;
    for (int64_t i = 0; i < args.x.dim(1); ++i)
      bad |= static_cast<uint32_t>((std::bit_cast<uint32_t>(x[i]) & 0x7f800000u) == 0x7f800000u);
    *args.finite.row_i32(t) = bad == 0 ? 1 : 0;
  });
}

}  // namespace

void add_norm_kernels(std::vector<Kernel>& out) {
  Contract embedding = op_contract(Op::Embed, "rows", Isa::Generic);
  embedding.weight = {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4};
  out.push_back(make_kernel<EmbedArgs, embed>(std::move(embedding)));
  out.push_back(make_kernel<RmsNormArgs, rms_norm>(op_contract(Op::RmsNorm, "rows", Isa::Generic)));
  out.push_back(make_kernel<AddRmsNormArgs, add_rms_norm>(op_contract(Op::AddRmsNorm, "rows", Isa::Generic)));
  out.push_back(make_kernel<GatherRowsArgs, gather_rows>(op_contract(Op::GatherRows, "rows", Isa::Generic)));
  out.push_back(make_kernel<FiniteRowsArgs, finite_rows>(op_contract(Op::FiniteRows, "rows", Isa::Generic)));
}

}  // namespace plumb::cpu
