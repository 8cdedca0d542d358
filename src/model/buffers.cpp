#include "model/buffers.h"

#include <algorithm>

#include "model/host_memory.h"

namespace plumb {
namespace {

// Scratch for index logits: tiles of rows are computed one after the other so that a long context needs no more.
constexpr int64_t kIndexLogitsBytes = int64_t{64} << 20;
constexpr int64_t kColumnsMultiple = 64;

// Hands out aligned pieces of one block; without a block it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  void* take(int64_t bytes) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return at;
  }
  template <class T>
  T* array(int64_t n) {
    return static_cast<T*>(take(n * static_cast<int64_t>(sizeof(T))));
  }
  Tensor f32(int64_t rows, int64_t n) { return {take(rows * n * 4), DType::F32, {rows, n}}; }
  Tensor i32(int64_t rows, int64_t n) { return {take(rows * n * 4), DType::I32, {rows, n}}; }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

int64_t index_logits_elements(const ForwardLimits& limits) {
  const int64_t columns = (limits.context + kColumnsMultiple - 1) / kColumnsMultiple * kColumnsMultiple;
  return std::max(columns, std::min(columns * limits.rows, kIndexLogitsBytes / 4));
}

void carve_mtp(const ModelConfig& c, ForwardBuffers& b, Carver& carver) {
  const int64_t rows = b.limits.rows;
  const int64_t sequences = b.limits.sequences > 0 ? b.limits.sequences : rows;
  b.eh = carver.f32(rows, int64_t{2} * c.hidden_size);
  b.z = carver.f32(rows, c.hidden_size);
  b.mtp_selection = carver.i32(rows, c.index_topk);
  b.draft_sets = carver.i32(sequences, c.index_topk + kMaxReusedDrafts);
  b.draft_selection = carver.i32(rows, c.index_topk + kMaxReusedDrafts);
}

void carve(const ModelConfig& c, ForwardBuffers& b, Carver& carver) {
  const int64_t rows = b.limits.rows;
  b.ids = carver.array<int32_t>(rows);
  b.topk_positions = carver.array<int32_t>(rows);
  b.cos = carver.array<float>(rows * c.qk_rope_head_dim / 2);
  b.sin = carver.array<float>(rows * c.qk_rope_head_dim / 2);
  for (Tensor* tensor : {&b.residual, &b.x, &b.delta, &b.shared, &b.hidden}) *tensor = carver.f32(rows, c.hidden_size);
  b.q_latent = carver.f32(rows, c.q_lora_rank);
  b.q = carver.f32(rows, int64_t{c.num_attention_heads} * c.qk_head_dim());
  b.kv_a = carver.f32(rows, c.kv_lora_rank + c.qk_rope_head_dim);
  b.latent = carver.f32(rows, c.kv_lora_rank);
  b.attention = carver.f32(rows, int64_t{c.num_attention_heads} * c.v_head_dim);
  b.index_q = carver.f32(rows, int64_t{c.index_n_heads} * c.index_head_dim);
  b.index_k = carver.f32(rows, c.index_head_dim);
  b.index_weights = carver.f32(rows, c.index_n_heads);
  b.index_logits_elements = index_logits_elements(b.limits);
  b.index_logits = carver.array<float>(b.index_logits_elements);
  b.selection = carver.i32(rows, c.index_topk);
  b.router_logits = carver.f32(rows, std::max(c.n_routed_experts, 1));
  b.experts = carver.i32(rows, std::max(c.num_experts_per_tok, 1));
  b.expert_weights = carver.f32(rows, std::max(c.num_experts_per_tok, 1));
  b.gathered = carver.f32(b.limits.logit_rows, c.hidden_size);
  b.logits = carver.f32(b.limits.logit_rows, c.vocab_size);
  if (b.limits.mtp) carve_mtp(c, b, carver);
}

}  // namespace

void ForwardBuffersDeleter::operator()(ForwardBuffers* buffers) const { delete buffers; }

int64_t forward_buffer_bytes(const ModelConfig& config, const ForwardLimits& limits) {
  ForwardBuffers counted{.limits = limits};
  Carver carver(nullptr);
  carve(config, counted, carver);
  return carver.used();
}

Result<ForwardBuffersPtr> make_buffers(const ModelConfig& config, const ForwardLimits& limits) {
  PLUMB_CHECK(limits.rows > 0 && limits.logit_rows > 0 && limits.context > 0, "a step has at least one row");
  ForwardBuffersPtr buffers(new ForwardBuffers{.limits = limits});
  const int64_t bytes = forward_buffer_bytes(config, limits);
  PLUMB_TRY(buffers->storage, allocate_host(static_cast<size_t>(bytes), "the activations of a step"));
  Carver carver(buffers->storage.get());
  carve(config, *buffers, carver);
  buffers->inv_freq = rope_inv_freq(config.rope, config.qk_rope_head_dim);
  buffers->cos_sin_factor = static_cast<float>(rope_cos_sin_factor(config.rope));
  return buffers;
}

}  // namespace plumb
