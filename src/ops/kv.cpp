#include "ops/kv.h"

namespace plumb {

std::string to_string(KvFormat format) {
  switch (format) {
    case KvFormat::None:
      return "none";
    case KvFormat::F32:
      return "f32";
    case KvFormat::Bf16:
      return "bf16";
    case KvFormat::Fp8Tile128:
      return "fp8_tile128";
  }
  return "?";
}

std::string to_string(IndexKeyFormat format) {
  switch (format) {
    case IndexKeyFormat::None:
      return "none";
    case IndexKeyFormat::F32:
      return "f32";
    case IndexKeyFormat::Bf16:
      return "bf16";
    case IndexKeyFormat::Fp8:
      return "fp8";
  }
  return "?";
}

int64_t KvGeometry::latent_row_bytes() const {
  switch (latent) {
    case KvFormat::None:
      return 0;
    case KvFormat::F32:
      return int64_t{4} * (kv_lora_rank + rope_dim);
    case KvFormat::Bf16:
      return int64_t{2} * (kv_lora_rank + rope_dim);
    case KvFormat::Fp8Tile128:
      return kv_lora_rank + int64_t{4} * ((kv_lora_rank + 127) / 128) + int64_t{2} * rope_dim;
  }
  return 0;
}

int64_t KvGeometry::index_page_bytes() const {
  switch (index_key) {
    case IndexKeyFormat::None:
      return 0;
    case IndexKeyFormat::F32:
      return int64_t{4} * index_head_dim * page_tokens;
    case IndexKeyFormat::Bf16:
      return int64_t{2} * index_head_dim * page_tokens;
    case IndexKeyFormat::Fp8:
      return (int64_t{index_head_dim} + 4) * page_tokens;
  }
  return 0;
}

}  // namespace plumb
