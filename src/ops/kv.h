// The paged KV cache as kernels see it (model.md section 4). A page holds `page_tokens` rows of one layer.
//   latent row, F32:  (kv_lora_rank + rope) f32            Bf16: the same in bf16, rope part interleaved as rotated
//   latent row, Fp8Tile128: kv_lora_rank e4m3 | one f32 scale per started 128 | rope part in bf16   (656 bytes at
//   512+64) index key, F32/Bf16: index_head_dim values a token index key page, Fp8: page_tokens x index_head_dim e4m3,
//   then page_tokens f32 scales
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace plumb {

enum class KvFormat : uint8_t { None, F32, Bf16, Fp8Tile128 };
enum class IndexKeyFormat : uint8_t { None, F32, Bf16, Fp8 };
std::string to_string(KvFormat format);
std::string to_string(IndexKeyFormat format);

struct KvGeometry {
  KvFormat latent = KvFormat::Bf16;
  IndexKeyFormat index_key = IndexKeyFormat::Bf16;
  int kv_lora_rank = 0;
  int rope_dim = 0;        // qk_rope_head_dim
  int index_head_dim = 0;  // 0: the layer has no indexer
  int page_tokens = 64;

  int64_t latent_row_bytes() const;
  int64_t latent_page_bytes() const { return latent_row_bytes() * page_tokens; }
  int64_t index_page_bytes() const;
};

// One layer's cache: pages side by side. `index_keys` is null for layers without an indexer.
struct KvView {
  KvGeometry geometry{};
  std::byte* latent = nullptr;      // [pages, page_tokens, latent_row_bytes]
  std::byte* index_keys = nullptr;  // [pages, index_page_bytes]
};

// Which rows of which sequences a step computes. Row r is the token at `positions[r]` of sequence `sequence[r]`, and
// sees the positions 0 ... positions[r] of that sequence, all of which are in the cache once the step's own rows are
// written. A padding row has sequence -1: its input may be anything, it is never written to the cache, and its output
// is ignored.
struct Paging {
  int rows = 0;
  int sequences = 0;
  const int32_t* positions = nullptr;   // [rows]
  const int32_t* sequence = nullptr;    // [rows]
  const int32_t* page_table = nullptr;  // [sequences, page_table_stride], page ids
  int page_table_stride = 0;
  int page_tokens = 64;

  int32_t page(int32_t seq, int32_t position) const {
    return page_table[static_cast<int64_t>(seq) * page_table_stride + position / page_tokens];
  }
};

inline std::byte* latent_row(const KvView& kv, const Paging& paging, int32_t seq, int32_t position) {
  const int64_t page = paging.page(seq, position);
  return kv.latent + page * kv.geometry.latent_page_bytes() +
         (position % paging.page_tokens) * kv.geometry.latent_row_bytes();
}
inline std::byte* index_page(const KvView& kv, const Paging& paging, int32_t seq, int32_t position) {
  return kv.index_keys + static_cast<int64_t>(paging.page(seq, position)) * kv.geometry.index_page_bytes();
}

}  // namespace plumb
