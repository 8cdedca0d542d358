#include "ops/kv_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

template <class T>
T load(const std::byte* base, int64_t index) {
  T value;
  std::memcpy(&value, base + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void store(std::byte* base, int64_t index, T value) {
  std::memcpy(base + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

constexpr int kTile = 128;  // latent elements that share a scale
int tiles(const KvGeometry& geometry) { return (geometry.kv_lora_rank + kTile - 1) / kTile; }

}  // namespace

float fp8_scale(const float* x, int64_t n) {
  float amax = 1e-4f;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    if (!(magnitude <= amax)) amax = magnitude;  // a NaN stays one and poisons the whole group
    if (std::isnan(amax)) break;
  }
  return amax / 448.0f;
}

void read_latent_row(const KvGeometry& geometry, const std::byte* row, float* out) {
  const int rank = geometry.kv_lora_rank;
  const int all = rank + geometry.rope_dim;
  if (geometry.latent == KvFormat::F32) {
    for (int i = 0; i < all; ++i) out[i] = load<float>(row, i);
    return;
  }
  if (geometry.latent == KvFormat::Bf16) {
    for (int i = 0; i < all; ++i) out[i] = bf16_to_f32(load<uint16_t>(row, i));
    return;
  }
  PLUMB_CHECK(geometry.latent == KvFormat::Fp8Tile128, "unknown latent cache format");
  for (int i = 0; i < rank; ++i) out[i] = e4m3_to_f32(load<uint8_t>(row, i)) * load<float>(row + rank, i / kTile);
  const std::byte* rope = row + rank + int64_t{4} * tiles(geometry);
  for (int i = 0; i < geometry.rope_dim; ++i) out[rank + i] = bf16_to_f32(load<uint16_t>(rope, i));
}

void write_latent_row(const KvGeometry& geometry, const float* latent, const float* rope, std::byte* row) {
  const int rank = geometry.kv_lora_rank;
  if (geometry.latent == KvFormat::F32) {
    for (int i = 0; i < rank; ++i) store(row, i, latent[i]);
    for (int i = 0; i < geometry.rope_dim; ++i) store(row, rank + i, rope[i]);
    return;
  }
  if (geometry.latent == KvFormat::Bf16) {
    for (int i = 0; i < rank; ++i) store(row, i, f32_to_bf16(latent[i]));
    for (int i = 0; i < geometry.rope_dim; ++i) store(row, rank + i, f32_to_bf16(rope[i]));
    return;
  }
  PLUMB_CHECK(geometry.latent == KvFormat::Fp8Tile128, "unknown latent cache format");
  for (int tile = 0; tile < tiles(geometry); ++tile) {
    const int begin = tile * kTile;
    const int end = std::min(begin + kTile, rank);
    const float scale = fp8_scale(latent + begin, end - begin);
    for (int i = begin; i < end; ++i) store(row, i, f32_to_e4m3(latent[i] / scale));
    store(row + rank, tile, scale);
  }
  std::byte* out_rope = row + rank + int64_t{4} * tiles(geometry);
  for (int i = 0; i < geometry.rope_dim; ++i) store(out_rope, i, f32_to_bf16(rope[i]));
}

void read_index_key(const KvGeometry& geometry, const std::byte* page, int slot, float* out) {
  const int dim = geometry.index_head_dim;
  const int64_t first = int64_t{slot} * dim;
  switch (geometry.index_key) {
    case IndexKeyFormat::F32:
      for (int i = 0; i < dim; ++i) out[i] = load<float>(page, first + i);
      return;
    case IndexKeyFormat::Bf16:
      for (int i = 0; i < dim; ++i) out[i] = bf16_to_f32(load<uint16_t>(page, first + i));
      return;
    case IndexKeyFormat::Fp8: {
      const float scale = load<float>(page + int64_t{geometry.page_tokens} * dim, slot);
      for (int i = 0; i < dim; ++i) out[i] = e4m3_to_f32(load<uint8_t>(page, first + i)) * scale;
      return;
    }
    case IndexKeyFormat::None:
      break;
  }
  PLUMB_CHECK(false, "the layer has no index keys");
}

void write_index_key(const KvGeometry& geometry, const float* key, std::byte* page, int slot) {
  const int dim = geometry.index_head_dim;
  const int64_t first = int64_t{slot} * dim;
  switch (geometry.index_key) {
    case IndexKeyFormat::F32:
      for (int i = 0; i < dim; ++i) store(page, first + i, key[i]);
      return;
    case IndexKeyFormat::Bf16:
      for (int i = 0; i < dim; ++i) store(page, first + i, f32_to_bf16(key[i]));
      return;
    case IndexKeyFormat::Fp8: {
      const float scale = fp8_scale(key, dim);
      for (int i = 0; i < dim; ++i) store(page, first + i, f32_to_e4m3(key[i] / scale));
      store(page + int64_t{geometry.page_tokens} * dim, slot, scale);
      return;
    }
    case IndexKeyFormat::None:
      break;
  }
  PLUMB_CHECK(false, "the layer has no index keys");
}

}  // namespace plumb
