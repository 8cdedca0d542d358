#include <algorithm>

#include "model/model.h"

namespace plumb {
namespace {

constexpr int64_t kAlign = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

bool has_index_keys(const ModelConfig& config, int layer) {
  return layer >= config.num_hidden_layers || config.is_full_indexer(layer);  // the MTP layer is a full one
}

}  // namespace

KvCache::PageBytes KvCache::page_bytes_of(const ModelConfig& config, bool with_mtp, const KvGeometry& geometry) {
  const int layers = config.num_hidden_layers + (with_mtp ? 1 : 0);
  PageBytes bytes;
  for (int layer = 0; layer < layers; ++layer) {
    bytes.latent += geometry.latent_page_bytes();
    if (has_index_keys(config, layer)) bytes.index_keys += geometry.index_page_bytes();
  }
  return bytes;
}

void KvCache::wipe(int32_t page, const Memory& memory, Stream& stream) {
  for (const KvView& view : views_) {
    const int64_t latent = view.geometry.latent_page_bytes();
    memory.clear(view.latent + page * latent, static_cast<size_t>(latent), stream);
    if (view.index_keys == nullptr) continue;
    const int64_t keys = view.geometry.index_page_bytes();
    memory.clear(view.index_keys + page * keys, static_cast<size_t>(keys), stream);
  }
}

Result<KvCache> KvCache::make(const ModelConfig& config, bool with_mtp, const KvGeometry& geometry, int64_t pages,
                              const Memory& memory) {
  PLUMB_CHECK(pages > 0 && geometry.page_tokens > 0, "a cache needs pages");
  const int layers = config.num_hidden_layers + (with_mtp ? 1 : 0);
  const int64_t latent_bytes = aligned(geometry.latent_page_bytes() * pages);
  const int64_t index_bytes = aligned(geometry.index_page_bytes() * pages);
  KvCache cache;
  cache.geometry_ = geometry;
  cache.pages_ = pages;
  for (int layer = 0; layer < layers; ++layer)
    cache.bytes_ += latent_bytes + (has_index_keys(config, layer) ? index_bytes : 0);
  PLUMB_TRY(cache.storage_, memory.allocate(static_cast<size_t>(cache.bytes_), "the KV cache"));
  std::byte* next = cache.storage_.get();
  for (int layer = 0; layer < layers; ++layer) {
    KvView view{.geometry = geometry, .latent = next};
    next += latent_bytes;
    if (has_index_keys(config, layer)) {
      view.index_keys = next;
      next += index_bytes;
    } else {
      view.geometry.index_head_dim = 0;
    }
    cache.views_.push_back(view);
  }
  return cache;
}

}  // namespace plumb
