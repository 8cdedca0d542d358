// Rotation, and what goes into the cache with it (model.md 3.3, 3.7, section 4).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/op_kernels.h"
#include "tensor/encode.h"

namespace plumb::cpu {
namespace {

constexpr int kMaxLatent = 2048;  // kv_lora_rank + rope_dim
constexpr int kScaleTile = 128;

float rounded(float x, const Numerics& numerics) { return numerics.round_bf16 ? round_bf16(x) : x; }

// One head: pairs (2i, 2i+1), or (i, i + half).
struct Turn {
  int rope_dim = 0;
  bool interleaved = true;
  const float* cos = nullptr;
  const float* sin = nullptr;
};
void rotate(float* x, const Turn& turn, const Numerics& numerics) {
  const int half = turn.rope_dim / 2;
  const int step = turn.interleaved ? 2 : 1;
  const int partner = turn.interleaved ? 1 : half;
  if (!numerics.round_bf16 && !numerics.rope_bf16) {
    for (int i = 0; i < half; ++i) {
      const float a = x[i * step];
      const float b = x[i * step + partner];
      x[i * step] = a * turn.cos[i] - b * turn.sin[i];
      x[i * step + partner] = b * turn.cos[i] + a * turn.sin[i];
    }
    return;
  }
  // With cos and sin in bf16 every product is rounded, as published code does; else only the result.
  const auto product = [&](float a, float b) {
    return numerics.round_bf16 && numerics.rope_bf16 ? round_bf16(a * b) : a * b;
  };
  for (int i = 0; i < half; ++i) {
    const float a = x[i * step];
    const float b = x[i * step + partner];
    const float c = numerics.rope_bf16 ? round_bf16(turn.cos[i]) : turn.cos[i];
    const float s = numerics.rope_bf16 ? round_bf16(turn.sin[i]) : turn.sin[i];
    x[i * step] = rounded(product(a, c) - product(b, s), numerics);
    x[i * step + partner] = rounded(product(b, c) + product(a, s), numerics);
  }
}

// Walsh-Hadamard transform in natural order, scale n^-1/2.
void hadamard(float* x, int n, const Numerics& numerics) {
  PLUMB_CHECK(n > 0 && (n & (n - 1)) == 0, "a Hadamard rotation needs a power of two");
  for (int span = 1; span < n; span *= 2) {
    for (int block = 0; block < n; block += 2 * span) {
      for (int i = block; i < block + span; ++i) {
        const float a = x[i];
        const float b = x[i + span];
        x[i] = a + b;
        x[i + span] = a - b;
      }
    }
  }
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (int i = 0; i < n; ++i) x[i] = rounded(x[i] * scale, numerics);
}

// amax / 448, amax clamped to >= 1e-4; NaN if a value is.
float fp8_scale(const float* x, int n) {
  float amax = 1e-4f;
  bool nan = false;
  for (int i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    amax = magnitude > amax ? magnitude : amax;
    nan |= x[i] != x[i];
  }
  return nan ? std::nanf("") : amax / 448.0f;
}

template <class T>
void put(std::byte* base, int64_t index, T value) {
  std::memcpy(base + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}
void put_bf16(std::byte* to, const float* x, int n) {
  for (int i = 0; i < n; ++i) put(to, i, f32_to_bf16(x[i]));
}
// Codes to `to`, the group's scale to `scale`.
void put_e4m3(std::byte* to, std::byte* scale_to, const float* x, int n) {
  const float scale = fp8_scale(x, n);
  for (int i = 0; i < n; ++i) put(to, i, f32_to_e4m3(x[i] / scale));
  put(scale_to, 0, scale);
}

void write_latent(const KvGeometry& g, const float* row, std::byte* to) {
  const int rank = g.kv_lora_rank;
  if (g.latent == KvFormat::F32) {
    std::memcpy(to, row, static_cast<size_t>(rank + g.rope_dim) * 4);
  } else if (g.latent == KvFormat::Bf16) {
    put_bf16(to, row, rank + g.rope_dim);
  } else {
    const int tiles = (rank + kScaleTile - 1) / kScaleTile;
    for (int t = 0; t < tiles; ++t)
      put_e4m3(to + t * kScaleTile, to + rank + 4 * t, row + t * kScaleTile,
               std::min(kScaleTile, rank - t * kScaleTile));
    put_bf16(to + rank + 4 * tiles, row + rank, g.rope_dim);
  }
}

void write_index_key(const KvGeometry& g, const float* key, std::byte* page, int slot) {
  const int dim = g.index_head_dim;
  const int64_t first = int64_t{slot} * dim;
  if (g.index_key == IndexKeyFormat::F32) {
    std::memcpy(page + 4 * first, key, static_cast<size_t>(dim) * 4);
  } else if (g.index_key == IndexKeyFormat::Bf16) {
    put_bf16(page + 2 * first, key, dim);
  } else {
    put_e4m3(page + first, page + int64_t{g.page_tokens} * dim + 4 * slot, key, dim);
  }
}

void rope(const RopeArgs& args, Stream& stream) {
  const int half = args.rope_dim / 2;
  for_each_row(stream, args.x.dim(0), [&](int64_t t) {
    const Turn turn{.rope_dim = args.rope_dim,
                    .interleaved = args.interleaved,
                    .cos = args.cos + t * half,
                    .sin = args.sin + t * half};
    for (int h = 0; h < args.heads; ++h)
      rotate(args.x.row_f32(t) + int64_t{h} * args.head_dim + args.offset, turn, args.numerics);
  });
}

void kv_write(const KvWriteArgs& args, Stream& stream) {
  const KvGeometry& g = args.kv.geometry;
  const int rank = g.kv_lora_rank;
  const int half = g.rope_dim / 2;
  PLUMB_CHECK(rank + g.rope_dim <= kMaxLatent, "a latent row longer than the kernel's contract allows");
  for_each_row(stream, args.paging.rows, [&](int64_t t) {
    const int32_t sequence = args.paging.sequence[t];
    if (sequence < 0) return;
    float row[kMaxLatent];
    const float* in = args.kv_a.row_f32(t);
    norm_row({.x = in, .weight = args.weight, .y = row, .n = rank, .eps = args.eps}, args.numerics);
    std::copy_n(in + rank, g.rope_dim, row + rank);
    rotate(row + rank, {.rope_dim = g.rope_dim, .cos = args.cos + t * half, .sin = args.sin + t * half}, args.numerics);
    if (args.latent.data != nullptr) std::copy_n(row, rank, args.latent.row_f32(t));
    write_latent(g, row, latent_row(args.kv, args.paging, sequence, args.paging.positions[t]));
  });
}

void index_query(const IndexQueryArgs& args, Stream& stream) {
  const int half = args.rope_dim / 2;
  for_each_row(stream, args.q.dim(0), [&](int64_t t) {
    const Turn turn{.rope_dim = args.rope_dim,
                    .interleaved = args.interleaved,
                    .cos = args.cos + t * half,
                    .sin = args.sin + t * half};
    for (int h = 0; h < args.heads; ++h) {
      float* x = args.q.row_f32(t) + int64_t{h} * args.head_dim;
      rotate(x, turn, args.numerics);
      if (args.numerics.index_hadamard) hadamard(x, args.head_dim, args.numerics);
      if (args.index_key != IndexKeyFormat::Fp8) continue;
      const float scale = fp8_scale(x, args.head_dim);
      for (int i = 0; i < args.head_dim; ++i) x[i] = e4m3_to_f32(f32_to_e4m3(x[i] / scale)) * scale;
    }
  });
}

// LayerNorm with biased variance; float64 sums cost nothing at this size.
void layer_norm(float* x, int n, const IndexKeyWriteArgs& args) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  const double mean = sum / n;
  double squares = 0;
  for (int i = 0; i < n; ++i) squares += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean);
  const double scale = 1.0 / std::sqrt(squares / n + args.eps);
  for (int i = 0; i < n; ++i) {
    const float centred = static_cast<float>((static_cast<double>(x[i]) - mean) * scale);
    x[i] = rounded(centred * args.weight[i] + args.bias[i], args.numerics);
  }
}

void index_key_write(const IndexKeyWriteArgs& args, Stream& stream) {
  const int dim = args.kv.geometry.index_head_dim;
  const int half = args.rope_dim / 2;
  for_each_row(stream, args.paging.rows, [&](int64_t t) {
    const int32_t sequence = args.paging.sequence[t];
    if (sequence < 0) return;
    const int32_t position = args.paging.positions[t];
    float* key = args.k.row_f32(t);
    layer_norm(key, dim, args);
    rotate(key,
           {.rope_dim = args.rope_dim,
            .interleaved = args.interleaved,
            .cos = args.cos + t * half,
            .sin = args.sin + t * half},
           args.numerics);
    if (args.numerics.index_hadamard) hadamard(key, dim, args.numerics);
    write_index_key(args.kv.geometry, key, index_page(args.kv, args.paging, sequence, position),
                    position % args.paging.page_tokens);
  });
}

}  // namespace

void add_cache_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<RopeArgs, rope>(op_contract(Op::Rope, "rows", Isa::Generic)));
  Contract latent = op_contract(Op::KvWrite, "rows", Isa::Generic);
  latent.kv = {KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8Tile128};
  latent.limits.k_max = 1024;
  out.push_back(make_kernel<KvWriteArgs, kv_write>(std::move(latent)));
  for (const Op op : {Op::IndexQuery, Op::IndexKeyWrite}) {
    Contract index = op_contract(op, "rows", Isa::Generic);
    index.index_key = {IndexKeyFormat::F32, IndexKeyFormat::Bf16, IndexKeyFormat::Fp8};
    out.push_back(op == Op::IndexQuery ? make_kernel<IndexQueryArgs, index_query>(std::move(index))
                                       : make_kernel<IndexKeyWriteArgs, index_key_write>(std::move(index)));
  }
}

}  // namespace plumb::cpu
