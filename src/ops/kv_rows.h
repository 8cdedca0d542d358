// Rows of the cache, element by element: the meaning of every layout of ops/kv.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kv.h"

namespace plumb {

// One token of the latent cache as float32: out[0 : kv_lora_rank + rope_dim].
void read_latent_row(const KvGeometry& geometry, const std::byte* row, float* out);
void write_latent_row(const KvGeometry& geometry, const float* latent, const float* rope, std::byte* row);
// One token of an index key page as float32: out[0 : index_head_dim].
void read_index_key(const KvGeometry& geometry, const std::byte* page, int slot, float* out);
void write_index_key(const KvGeometry& geometry, const float* key, std::byte* page, int slot);
// amax / 448 with amax clamped to >= 1e-4: the scale of one FP8 group (model.md 3.7 and 4.3).
float fp8_scale(const float* x, int64_t n);

}  // namespace plumb
