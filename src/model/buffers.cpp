#include "model/buffers.h"

#include <algorithm>

#include "device/host_memory.h"

namespace plumb {
namespace {

// Scratch for index logits: tiles of rows are computed one after the other so that a long context needs no more.
constexpr int64_t kIndexLogitsBytes = int64_t{64} << 20;
constexpr int64_t kColumnsMultiple = 64;

// Hands out aligned pieces of one block; without a block it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base, Where where = Where::Host) : base_(base), where_(where) {}
  void* take(int64_t bytes) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return at;
  }
  template <class T>
  T* array(int64_t n) {
    return static_cast<T*>(take(n * static_cast<int64_t>(sizeof(T))));
  }
  Tensor f32(int64_t rows, int64_t n) { return {take(rows * n * 4), DType::F32, {rows, n}, where_}; }
  Tensor i32(int64_t rows, int64_t n) { return {take(rows * n * 4), DType::I32, {rows, n}, where_}; }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  Where where_;
  int64_t used_ = 0;
};

int64_t sequences_of(const ForwardLimits& limits) { return limits.sequences > 0 ? limits.sequences : limits.rows; }
int64_t table_columns(const ForwardLimits& limits) { return limits.context / limits.page_tokens + 2; }

void carve_step(const ModelConfig& c, const ForwardLimits& limits, ForwardBuffers::StepArrays& s, Carver& carver) {
  const int64_t rows = limits.rows;
  s.ids = carver.array<int32_t>(rows);
  s.topk_positions = carver.array<int32_t>(rows);
  s.cos = carver.array<float>(rows * c.qk_rope_head_dim / 2);
  s.sin = carver.array<float>(rows * c.qk_rope_head_dim / 2);
  s.positions = carver.array<int32_t>(rows);
  s.sequence = carver.array<int32_t>(rows);
  s.logit_rows = carver.array<int32_t>(limits.logit_rows);
  s.hidden_rows = carver.array<int32_t>(rows);
  s.page_table = carver.array<int32_t>(sequences_of(limits) * table_columns(limits));
}

int64_t index_logits_elements(const ForwardLimits& limits) {
  const int64_t columns = (limits.context + kColumnsMultiple - 1) / kColumnsMultiple * kColumnsMultiple;
  return std::max(columns, std::min(columns * limits.rows, kIndexLogitsBytes / 4));
}

void carve_mtp(const ModelConfig& c, ForwardBuffers& b, Carver& carver) {
  const int64_t rows = b.limits.rows;
  const int64_t sequences = sequences_of(b.limits);
  b.eh = carver.f32(rows, int64_t{2} * c.hidden_size);
  b.z = carver.f32(rows, c.hidden_size);
  b.mtp_selection = carver.i32(rows, c.index_topk);
  b.draft_sets = carver.i32(sequences, c.index_topk + kMaxReusedDrafts);
  b.draft_selection = carver.i32(rows, c.index_topk + kMaxReusedDrafts);
}

void carve(const ModelConfig& c, ForwardBuffers& b, Carver& carver) {
  const int64_t rows = b.limits.rows;
  carve_step(c, b.limits, b.step, carver);
  b.step_bytes = carver.used();
  for (Tensor* tensor : {&b.residual, &b.x, &b.delta, &b.shared, &b.hidden}) *tensor = carver.f32(rows, c.hidden_size);
  b.q_latent = carver.f32(rows, c.q_lora_rank);
  const int64_t heads = c.num_attention_heads / b.limits.ranks;
  b.q = carver.f32(rows, heads * c.qk_head_dim());
  b.kv_a = carver.f32(rows, c.kv_lora_rank + c.qk_rope_head_dim);
  b.latent = carver.f32(rows, c.kv_lora_rank);
  b.attention = carver.f32(rows, heads * c.v_head_dim);
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
  if (b.limits.vocabulary_share > 0) b.logits_share = carver.f32(b.limits.logit_rows, b.limits.vocabulary_share);
  b.report = carver.i32(rows, 2);
  if (b.limits.mtp) carve_mtp(c, b, carver);
}

}  // namespace

void ForwardBuffersDeleter::operator()(ForwardBuffers* buffers) const { delete buffers; }

// A step may reach to the end of the context's last page.
int64_t angle_table_bytes(const ModelConfig& config, const ForwardLimits& limits) {
  return (int64_t{limits.context} + limits.page_tokens) * config.qk_rope_head_dim * 4;
}

int64_t forward_buffer_bytes(const ModelConfig& config, const ForwardLimits& limits) {
  ForwardBuffers counted{.limits = limits};
  Carver carver(nullptr);
  carve(config, counted, carver);
  return carver.used();
}

Result<ForwardBuffersPtr> make_buffers(const ModelConfig& config, const ForwardLimits& limits, const Memory& memory) {
  PLUMB_CHECK(limits.rows > 0 && limits.logit_rows > 0 && limits.context > 0, "a step has at least one row");
  ForwardBuffersPtr buffers(new ForwardBuffers{.limits = limits});
  const int64_t bytes = forward_buffer_bytes(config, limits);
  PLUMB_TRY(buffers->storage, memory.allocate(static_cast<size_t>(bytes), "the activations of a step"));
  buffers->memory = memory;
  Carver carver(buffers->storage.get(), memory.where);
  carve(config, *buffers, carver);
  buffers->step_base = buffers->storage.get();
  buffers->host_step = buffers->step;
  buffers->host_step_base = buffers->step_base;
  if (memory.where != Where::Host) {
    PLUMB_TRY(buffers->host_step_storage,
              memory.allocate_staging(static_cast<size_t>(buffers->step_bytes), "the arrays of a step"));
    buffers->host_step_base = buffers->host_step_storage.get();
    Carver mirror(buffers->host_step_base);
    carve_step(config, limits, buffers->host_step, mirror);
  }
  const int64_t angle_bytes = angle_table_bytes(config, limits);
  PLUMB_TRY(buffers->angle_storage, allocate_host(static_cast<size_t>(angle_bytes), "the angles of positions"));
  buffers->angles = reinterpret_cast<float*>(buffers->angle_storage.get());
  buffers->inv_freq = rope_inv_freq(config.rope, config.qk_rope_head_dim);
  buffers->cos_sin_factor = static_cast<float>(rope_cos_sin_factor(config.rope));
  return buffers;
}

}  // namespace plumb
