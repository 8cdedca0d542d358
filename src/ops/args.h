// What each op means, as the arguments its kernels get. The code in kernels/reference is the definition; formulas are
// model.md section 3. T = rows of the step. Activations are Tensors of f32 on a CPU (bf16 on a GPU); padding rows may
// hold anything and must not influence other rows.
#pragma once

#include <cstdint>
#include <span>

#include "ops/kv.h"
#include "ops/weight.h"
#include "tensor/tensor.h"

namespace plumb {

class Communicator;

enum class Op : uint8_t {
  Embed,
  RmsNorm,
  AddRmsNorm,
  Linear,
  Rope,
  KvWrite,
  IndexQuery,
  IndexKeyWrite,
  IndexerLogits,
  TopK,
  MlaAttend,
  Router,
  Mlp,
  Moe,
  GatherRows,
  FiniteRows,
  DraftSet,
  Sample,
  AllReduce,
  GatherColumns,
};
inline constexpr int kOpCount = static_cast<int>(Op::GatherColumns) + 1;
std::string to_string(Op op);

// Numerical choices on which published implementations differ (model.md 3.2, 3.3, 3.7). Part of the plan, the same for
// every op of one cache. `round_bf16`: every op's output is rounded to bf16 (what a bf16 engine does); without it
// activations stay f32, which is what the float32 goldens hold.
struct Numerics {
  bool round_bf16 = false;
  bool norm_two_roundings = false;  // RMSNorm rounds before multiplying its weight as well (with round_bf16)
  bool rope_bf16 = false;           // cos and sin rounded to bf16
  bool index_hadamard = false;      // Walsh-Hadamard rotation of index queries and keys
  friend bool operator==(const Numerics&, const Numerics&) = default;
};

// y[t] = table[ids[t]]; zeros for ids that are not in the table: those of padding rows, or of another rank's share
struct EmbedArgs {
  const int32_t* ids = nullptr;   // [T]
  const Weight* table = nullptr;  // [vocab_size, hidden]
  Tensor y{};                     // [T, hidden]
  Numerics numerics{};
};

// y = x * rsqrt(mean(x^2) + eps) * weight
struct RmsNormArgs {
  Tensor x{};                     // [T, n]
  const float* weight = nullptr;  // [n]
  double eps = 0;
  Tensor y{};  // [T, n]; may be x
  Numerics numerics{};
};

// residual += delta; y = rms_norm(residual)
struct AddRmsNormArgs {
  Tensor residual{};              // [T, hidden], in and out
  Tensor delta{};                 // [T, hidden]
  const float* weight = nullptr;  // [hidden]
  double eps = 0;
  Tensor y{};  // [T, hidden]
  Numerics numerics{};
};

// y = x . W^T (+ bias)
struct LinearArgs {
  const Weight* w = nullptr;  // [n, k]
  Tensor x{};                 // [T, k]
  Tensor y{};                 // [T, n]
  Numerics numerics{};
};

// Rotates x[t, h, offset : offset + rope_dim] in place. Interleaved: pairs (2i, 2i+1) written back interleaved;
// else half-split: pairs (i, i + rope_dim/2).
struct RopeArgs {
  Tensor x{};  // [T, heads * head_dim]
  int heads = 0;
  int head_dim = 0;
  int offset = 0;
  int rope_dim = 0;
  bool interleaved = true;
  const float* cos = nullptr;  // [T, rope_dim / 2]
  const float* sin = nullptr;
  Numerics numerics{};
};

// latent = rms_norm(kv_a[:, :kv_lora_rank]); k_pe = rope(kv_a[:, kv_lora_rank:]), interleaved; both into the cache.
// `latent`, when it has data, also receives [T, kv_lora_rank] as before the cache's own rounding.
struct KvWriteArgs {
  Tensor kv_a{};                  // [T, kv_lora_rank + rope_dim]
  const float* weight = nullptr;  // [kv_lora_rank]
  double eps = 0;
  const float* cos = nullptr;  // [T, rope_dim / 2]
  const float* sin = nullptr;
  Paging paging{};
  KvView kv{};
  Tensor latent{};
  Numerics numerics{};
};

// Index queries, in place: rope on the first rope_dim of every head, Hadamard rotation if chosen, and with an FP8 key
// cache the same FP8 rounding the keys get: e4m3 with one scale per head, amax clamped to >= 1e-4.
struct IndexQueryArgs {
  Tensor q{};  // [T, heads * head_dim]
  int heads = 0;
  int head_dim = 0;
  int rope_dim = 0;
  bool interleaved = true;
  const float* cos = nullptr;
  const float* sin = nullptr;
  IndexKeyFormat index_key = IndexKeyFormat::F32;
  Numerics numerics{};
};

// LayerNorm (eps 1e-6, weight and bias), rope on the first rope_dim, Hadamard if chosen, into the index key cache.
struct IndexKeyWriteArgs {
  Tensor k{};                     // [T, head_dim]; receives the key as before the cache's own rounding
  const float* weight = nullptr;  // [head_dim]
  const float* bias = nullptr;    // [head_dim]
  double eps = 1e-6;
  int rope_dim = 0;
  bool interleaved = true;
  const float* cos = nullptr;
  const float* sin = nullptr;
  Paging paging{};
  KvView kv{};
  Numerics numerics{};
};

// logits[r, j] = sum_h weights[r, h] * weight_scale * relu(q[r, h] . k[j] * softmax_scale) for j <= positions[r], -inf
// beyond, up to column `columns` - 1. f32 throughout.
struct IndexerLogitsArgs {
  Tensor q{};        // [R, heads * head_dim]
  Tensor weights{};  // [R, heads]: output of weights_proj
  int heads = 0;
  int head_dim = 0;
  float weight_scale = 0;   // heads^-1/2
  float softmax_scale = 0;  // head_dim^-1/2
  Paging paging{};          // of these R rows
  KvView kv{};
  Tensor logits{};  // [R, columns] f32
};

// indices[r] = the min(topk, length) positions with the largest logits among the first `length` = positions[r] + 1,
// ties to the lower position; ascending; the rest -1. When length <= topk the logits are not read (and may be absent).
struct TopKArgs {
  Tensor logits{};                     // [R, columns]
  const int32_t* positions = nullptr;  // [R]
  int topk = 0;
  Tensor indices{};  // [R, topk] i32
};

// Sparse MLA over the cache (model.md 3.5 and 3.6): o[t, h] = W_UV[h] . sum_j softmax_j(s) c_j over the selected
// positions. q[t, h] = nope | rope (rotated). kv_b rows are head-major, per head qk_nope key rows, then v_head_dim
// value rows.
struct MlaAttendArgs {
  Tensor q{};                    // [T, heads * (nope + rope)]
  const Weight* kv_b = nullptr;  // [heads * (nope + v), kv_lora_rank]
  int heads = 0;
  int nope_dim = 0;
  int rope_dim = 0;
  int v_dim = 0;
  float softmax_scale = 0;
  Tensor topk_indices{};  // [T, topk] i32, -1 = none; a row of only -1 gives zeros
  Paging paging{};
  KvView kv{};
  Tensor out{};  // [T, heads * v]
  Numerics numerics{};
};

// Scores, selection and weights of the experts (model.md 3.10).
struct RouterArgs {
  Tensor x{};                    // [T, hidden]
  const Weight* gate = nullptr;  // [experts, hidden]
  const float* bias = nullptr;   // [experts], selection only
  // [T], as in Paging, or null: no padding rows. Those get experts of -1: they cost nothing and touch nobody's weights.
  const int32_t* sequence = nullptr;
  int n_group = 1;
  int topk_group = 1;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1;
  Tensor experts{};  // [T, k] i32, descending by biased score, ties to the lower id
  Tensor weights{};  // [T, k] f32
  Tensor logits{};   // [T, experts] f32, scratch and tap
};

// y = down(silu(gate x) * up x)
struct MlpArgs {
  const Weight* gate = nullptr;  // [inter, hidden]
  const Weight* up = nullptr;
  const Weight* down = nullptr;  // [hidden, inter]
  Tensor x{};                    // [T, hidden]
  Tensor y{};                    // [T, hidden]
  Numerics numerics{};
};

// y[t] = sum_k weights[t, k] * mlp_{experts[t, k]}(x[t]) + shared[t], over the experts that are here
struct MoeArgs {
  std::span<const Weight> gate{};  // [experts] of [inter, hidden]
  std::span<const Weight> up{};
  std::span<const Weight> down{};  // [experts] of [hidden, inter]
  Tensor x{};                      // [T, hidden]
  int32_t first_expert = 0;        // gate[0] is this one of the model's: a rank may have some of them
  Tensor experts{};                // [T, k] i32; -1 = none (padding rows)
  Tensor weights{};                // [T, k] f32
  Tensor shared{};                 // [T, hidden] or no data
  Tensor y{};                      // [T, hidden]
  Numerics numerics{};
};

// y[i] = x[rows[i]]
struct GatherRowsArgs {
  Tensor x{};                     // [T, n]
  const int32_t* rows = nullptr;  // [R]
  Tensor y{};                     // [R, n]
};

// finite[t] = 1 if no x[t, i] is NaN or infinite, else 0
struct FiniteRowsArgs {
  Tensor x{};       // [T, n]
  Tensor finite{};  // [T, 1] i32
};

// The sets that later drafts of a round attend to (model.md 3.11): ascending positions, then -1. Without `extend`,
// sets[s] = selection[the last row of s]. With it, each row's own position is appended to its sequence's set (once) and
// selection[t] = that set; -1 throughout for padding rows. One row a sequence, and room in the set, when extending.
struct DraftSetArgs {
  bool extend = false;
  Tensor selection{};  // [T, k] i32: read, or with `extend` [T, width] and written
  Tensor sets{};       // [sequences, width] i32
  Paging paging{};
};

// One row of the sampler. The logits row is modified in place.
struct SampleRow {
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  int top_k = 0;
  uint64_t seed = 0;
  uint64_t position = 0;  // of the token being drawn: the random number is a function of (seed, position) alone
  std::span<const int32_t> adjust_ids{};   // logits[id] = adjusted, in this order:
  std::span<const float> adjust_factor{};  //   repetition penalty: x > 0 ? x / f : x * f, then
  std::span<const float> adjust_add{};     //   + bias - presence - frequency * count
  std::span<const int32_t> forbidden{};    // ids that must not be drawn (min_tokens, padding rows of the vocabulary)
  std::span<const uint32_t> allowed{};     // empty: all; else bit id % 32 of word id / 32 is set for ids that may be
  int logprobs = -1;                       // -1: none, else how many best ones besides the drawn token's
};
struct SampleOut {
  int32_t id = -1;
  bool poisoned = false;  // a logit was NaN or +inf, or all were -inf: nothing was drawn
  float logprob = 0;      // log softmax of the untouched logits at id
  int32_t top_ids[20] = {};
  float top_logprobs[20] = {};
};
struct SampleArgs {
  Tensor logits{};                    // [R, vocab] f32
  int vocab = 0;                      // ids >= vocab are padding rows and never drawn
  std::span<const SampleRow> rows{};  // [R]
  std::span<SampleOut> out{};         // [R]
};

// x = the sum of the x of all ranks that share the model, in order of rank: the same bits on each. Ranks that fail
// leave x as it is; the communicator then has the failure.
struct AllReduceArgs {
  Communicator* comm = nullptr;
  Tensor x{};  // [T, n], without gaps
  Numerics numerics{};
};

// On rank 0, y[t] = the rows x[t] of all ranks, one after the other; elsewhere x is sent and y is not touched.
struct GatherColumnsArgs {
  Communicator* comm = nullptr;
  Tensor x{};         // [T, share], without gaps; the last rank's may be narrower
  int64_t share = 0;  // width of the others'
  Tensor y{};         // [T, n], without gaps
};

}  // namespace plumb
