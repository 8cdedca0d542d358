// Rotation, and what goes into the cache with it (model.md 3.3, 3.7, section 4).
#include <algorithm>
#include <cmath>

#include "kernels/reference/common.h"

namespace plumb::reference {

void rotate(float* x, int rope_dim, bool interleaved, const float* cos, const float* sin, const Numerics& numerics) {
  const int half = rope_dim / 2;
  const bool round_products = numerics.round_bf16 && numerics.rope_bf16;
  const auto product = [&](double a, double b) {
    return round_products ? static_cast<double>(round_bf16(static_cast<float>(a * b))) : a * b;
  };
  for (int i = 0; i < half; ++i) {
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const double c = static_cast<double>(numerics.rope_bf16 ? round_bf16(cos[i]) : cos[i]);
    const double s = static_cast<double>(numerics.rope_bf16 ? round_bf16(sin[i]) : sin[i]);
    const double e = static_cast<double>(a);
    const double o = static_cast<double>(b);
    a = round_output(product(e, c) - product(o, s), numerics);
    b = round_output(product(o, c) + product(e, s), numerics);
  }
}

namespace {

// Walsh-Hadamard transform in natural (Sylvester) order, scale n^-1/2. n is a power of two.
void hadamard(float* x, int n, const Numerics& numerics) {
  PLUMB_CHECK(n > 0 && (n & (n - 1)) == 0, "a Hadamard rotation needs a power of two");
  std::vector<double> value(x, x + n);
  for (int span = 1; span < n; span *= 2) {
    for (int i = 0; i < n; ++i) {
      if ((i & span) != 0) continue;
      const double a = value[static_cast<size_t>(i)];
      const double b = value[static_cast<size_t>(i) + static_cast<size_t>(span)];
      value[static_cast<size_t>(i)] = a + b;
      value[static_cast<size_t>(i) + static_cast<size_t>(span)] = a - b;
    }
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(n));
  for (int i = 0; i < n; ++i) x[i] = round_output(value[static_cast<size_t>(i)] * scale, numerics);
}

void rope(const RopeArgs& args, Stream& stream) {
  const int half = args.rope_dim / 2;
  for_ranges(stream, args.x.dim(0), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int h = 0; h < args.heads; ++h) {
        float* x = args.x.row_f32(t) + static_cast<int64_t>(h) * args.head_dim + args.offset;
        rotate(x, args.rope_dim, args.interleaved, args.cos + t * half, args.sin + t * half, args.numerics);
      }
    }
  });
}

void kv_write(const KvWriteArgs& args, Stream& stream) {
  const KvGeometry& geometry = args.kv.geometry;
  const int64_t rank = geometry.kv_lora_rank;
  const int half = geometry.rope_dim / 2;
  for_ranges(stream, args.paging.rows, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(rank + geometry.rope_dim));
    for (int64_t t = begin; t < end; ++t) {
      const int32_t sequence = args.paging.sequence[t];
      if (sequence < 0) continue;
      const float* in = args.kv_a.row_f32(t);
      std::copy_n(in, row.size(), row.data());
      rms_norm_row({.x = in, .weight = args.weight, .y = row.data(), .n = rank, .eps = args.eps}, args.numerics);
      rotate(row.data() + rank, geometry.rope_dim, true, args.cos + t * half, args.sin + t * half, args.numerics);
      if (args.latent.data != nullptr) std::copy_n(row.data(), rank, args.latent.row_f32(t));
      write_latent_row(geometry, row.data(), row.data() + rank,
                       latent_row(args.kv, args.paging, sequence, args.paging.positions[t]));
    }
  });
}

// What index queries and keys have in common after projection and norm.
template <class Args>
void turn_index_head(float* x, int head_dim, int64_t t, const Args& args) {
  const int half = args.rope_dim / 2;
  rotate(x, args.rope_dim, args.interleaved, args.cos + t * half, args.sin + t * half, args.numerics);
  if (args.numerics.index_hadamard) hadamard(x, head_dim, args.numerics);
}

// IndexQueryArgs carries no paging: a padding row is computed like any other, and touches nothing but itself.
void index_query(const IndexQueryArgs& args, Stream& stream) {
  for_ranges(stream, args.q.dim(0), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int h = 0; h < args.heads; ++h) {
        float* x = args.q.row_f32(t) + static_cast<int64_t>(h) * args.head_dim;
        turn_index_head(x, args.head_dim, t, args);
        if (args.index_key != IndexKeyFormat::Fp8) continue;
        const float scale = fp8_scale(x, args.head_dim);
        for (int i = 0; i < args.head_dim; ++i) x[i] = e4m3_to_f32(f32_to_e4m3(x[i] / scale)) * scale;
      }
    }
  });
}

// LayerNorm with biased variance.
void layer_norm(float* x, int n, const IndexKeyWriteArgs& args) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  const double mean = sum / n;
  double squares = 0;
  for (int i = 0; i < n; ++i) squares += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean);
  const double scale = 1.0 / std::sqrt(squares / n + args.eps);
  for (int i = 0; i < n; ++i) {
    const double weight = static_cast<double>(args.weight[i]);
    x[i] = round_output((static_cast<double>(x[i]) - mean) * scale * weight + static_cast<double>(args.bias[i]),
                        args.numerics);
  }
}

void index_key_write(const IndexKeyWriteArgs& args, Stream& stream) {
  const int head_dim = args.kv.geometry.index_head_dim;
  for_ranges(stream, args.paging.rows, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t sequence = args.paging.sequence[t];
      if (sequence < 0) continue;
      const int32_t position = args.paging.positions[t];
      float* key = args.k.row_f32(t);
      layer_norm(key, head_dim, args);
      turn_index_head(key, head_dim, t, args);
      write_index_key(args.kv.geometry, key, index_page(args.kv, args.paging, sequence, position),
                      position % args.paging.page_tokens);
    }
  });
}

}  // namespace

void add_rope_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<RopeArgs, rope>(reference_contract(Op::Rope)));
  out.push_back(make_kernel<KvWriteArgs, kv_write>(reference_contract(Op::KvWrite)));
  out.push_back(make_kernel<IndexQueryArgs, index_query>(reference_contract(Op::IndexQuery)));
  out.push_back(make_kernel<IndexKeyWriteArgs, index_key_write>(reference_contract(Op::IndexKeyWrite)));
}

}  // namespace plumb::reference
