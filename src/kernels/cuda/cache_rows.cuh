// Rows of the paged cache on the device (layouts: ops/kv.h). Block-wide functions: every thread of the block calls
// them.
#pragma once

#include "kernels/cuda/device_types.cuh"

namespace plumb::cuda {

inline constexpr int kLatentTile = 128;  // latent elements that share a scale

__device__ inline int64_t latent_row_bytes_of(const KvGeometry& g) {
  switch (g.latent) {
    case KvFormat::F32:
      return 4 * int64_t{g.kv_lora_rank + g.rope_dim};
    case KvFormat::Bf16:
      return 2 * int64_t{g.kv_lora_rank + g.rope_dim};
    case KvFormat::Fp8Tile128:
      return int64_t{g.kv_lora_rank} + 4 * ((g.kv_lora_rank + kLatentTile - 1) / kLatentTile) + 2 * int64_t{g.rope_dim};
    case KvFormat::None:
      break;
  }
  return 0;
}
__device__ inline int64_t index_page_bytes_of(const KvGeometry& g) {
  switch (g.index_key) {
    case IndexKeyFormat::F32:
      return int64_t{4} * g.index_head_dim * g.page_tokens;
    case IndexKeyFormat::Bf16:
      return int64_t{2} * g.index_head_dim * g.page_tokens;
    case IndexKeyFormat::Fp8:
      return (int64_t{g.index_head_dim} + 4) * g.page_tokens;
    case IndexKeyFormat::None:
      break;
  }
  return 0;
}
__device__ inline int32_t page_at(const Paging& p, int32_t sequence, int32_t position) {
  return p.page_table[static_cast<int64_t>(sequence) * p.page_table_stride + position / p.page_tokens];
}
__device__ inline uint8_t* latent_row_at(const KvView& kv, const Paging& p, int32_t sequence, int32_t position) {
  const int64_t bytes = latent_row_bytes_of(kv.geometry);
  const int64_t row = static_cast<int64_t>(page_at(p, sequence, position)) * p.page_tokens + position % p.page_tokens;
  return reinterpret_cast<uint8_t*>(kv.latent) + row * bytes;
}
__device__ inline uint8_t* index_page_at(const KvView& kv, const Paging& p, int32_t sequence, int32_t position) {
  return reinterpret_cast<uint8_t*>(kv.index_keys) + page_at(p, sequence, position) * index_page_bytes_of(kv.geometry);
}

// amax / 448 with amax held at 1e-4 or above; a NaN stays one. The same value in every thread. Rows are short: each
// thread looks at all of it.
__device__ inline float fp8_scale(const float* x, int n) {
  float amax = 1e-4f;
  for (int i = 0; i < n; ++i) {
    const float magnitude = fabsf(x[i]);
    if (!(magnitude <= amax)) amax = magnitude;
    if (amax != amax) break;
  }
  return amax / 448.0f;
}

// Rows need not be aligned to their element (656-byte rows are; other sizes may not be), so bytes are composed.
template <class T>
__device__ T load_bytes(const uint8_t* p) {
  T value;
  memcpy(&value, p, sizeof(T));
  return value;
}
template <class T>
__device__ void store_bytes(uint8_t* p, T value) {
  memcpy(p, &value, sizeof(T));
}

__device__ inline void write_latent(const KvGeometry& g, const float* row, uint8_t* out) {
  const int rank = g.kv_lora_rank;
  const int all = rank + g.rope_dim;
  const int tiles = (rank + kLatentTile - 1) / kLatentTile;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    if (g.latent == KvFormat::F32) {
      store_bytes(out + 4 * i, row[i]);
    } else if (g.latent == KvFormat::Bf16) {
      store_bytes(out + 2 * i, f32_to_bf16(row[i]));
    } else if (i >= rank) {
      store_bytes(out + rank + 4 * tiles + 2 * (i - rank), f32_to_bf16(row[i]));
    } else {
      const int begin = i / kLatentTile * kLatentTile;
      const float scale = fp8_scale(row + begin, min(kLatentTile, rank - begin));
      out[i] = f32_to_e4m3(row[i] / scale);
      if (i == begin) store_bytes(out + rank + 4 * (i / kLatentTile), scale);
    }
  }
}

__device__ inline float read_latent(const KvGeometry& g, const uint8_t* row, int i) {
  if (g.latent == KvFormat::F32) return load_bytes<float>(row + 4 * i);
  if (g.latent == KvFormat::Bf16) return bf16_to_f32(load_bytes<uint16_t>(row + 2 * i));
  const int rank = g.kv_lora_rank;
  if (i < rank) return e4m3_to_f32(row[i]) * load_bytes<float>(row + rank + 4 * (i / kLatentTile));
  const int tiles = (rank + kLatentTile - 1) / kLatentTile;
  return bf16_to_f32(load_bytes<uint16_t>(row + rank + 4 * tiles + 2 * (i - rank)));
}

__device__ inline void write_index_key(const KvGeometry& g, const float* key, uint8_t* page, int slot) {
  const int dim = g.index_head_dim;
  const float scale = g.index_key == IndexKeyFormat::Fp8 ? fp8_scale(key, dim) : 1.0f;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += static_cast<int>(blockDim.x)) {
    const int at = slot * dim + i;
    if (g.index_key == IndexKeyFormat::F32) {
      store_bytes(page + 4 * at, key[i]);
    } else if (g.index_key == IndexKeyFormat::Bf16) {
      store_bytes(page + 2 * at, f32_to_bf16(key[i]));
    } else {
      page[at] = f32_to_e4m3(key[i] / scale);
      if (i == 0) store_bytes(page + static_cast<int64_t>(g.page_tokens) * dim + 4 * slot, scale);
    }
  }
}

__device__ inline float read_index_key(const KvGeometry& g, const uint8_t* page, int slot, int i) {
  const int at = slot * g.index_head_dim + i;
  if (g.index_key == IndexKeyFormat::F32) return load_bytes<float>(page + 4 * at);
  if (g.index_key == IndexKeyFormat::Bf16) return bf16_to_f32(load_bytes<uint16_t>(page + 2 * at));
  return e4m3_to_f32(page[at]) *
         load_bytes<float>(page + static_cast<int64_t>(g.page_tokens) * g.index_head_dim + 4 * slot);
}

}  // namespace plumb::cuda
