// Activations of one step. One block of memory, cut once for the largest step.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "model/model.h"

namespace plumb {

// What decides a step's launches and their sizes: steps of one shape can replay one recording of them.
struct StepShape {
  const void* hidden = nullptr;  // what mtp_forward continues; null: forward
  bool reuse_selection = false;
  int rows = 0, logit_rows = 0;
  int columns = 0;  // of the index logits; 0: no row is longer than index_topk, and none are computed
  int sequences = 0, page_table_stride = 0;
  int observers = 0;                                   // that put work of their own into the stream
  auto operator<=>(const StepShape&) const = default;  // NOLINT(modernize-use-nullptr): a comparison with 0 inside it
};

// [T, n] f32 unless said; T is ForwardLimits::rows.
struct ForwardBuffers {
  ForwardLimits limits{};
  std::shared_ptr<std::byte> storage{};

  // The step as kernels see it: padding rows have id 0, position -1 in `topk_positions` and angle 0. Written on the
  // host; a device has a copy of the whole, brought there once a step.
  struct StepArrays {
    int32_t* ids = nullptr;             // [T]
    int32_t* topk_positions = nullptr;  // [T]; -1 for padding rows, so that they select nothing
    float* cos = nullptr;               // [T, qk_rope_head_dim / 2]
    float* sin = nullptr;
    int32_t* positions = nullptr;    // [T]
    int32_t* sequence = nullptr;     // [T]
    int32_t* logit_rows = nullptr;   // [logit_rows]
    int32_t* hidden_rows = nullptr;  // [T], of mtp_forward
    int32_t* page_table = nullptr;   // [sequences, pages of the longest]; the last, so that a copy may end early
  };
  StepArrays step{};       // where kernels read them
  StepArrays host_step{};  // where prepare_step writes them; the same on the host
  std::byte* step_base = nullptr;
  std::byte* host_step_base = nullptr;
  int64_t step_bytes = 0;
  std::shared_ptr<std::byte> host_step_storage{};
  Memory memory{};
  // Of the step under way, where kernels read it. Rows are padded when the step can be recorded.
  Paging paging{};
  StepShape shape{};
  bool padded = false;      // rows, logit rows and columns are those of `shape`, not of the step
  bool recordable = false;  // and nobody wants to see the launches
  std::map<StepShape, std::shared_ptr<void>> recordings{};  // null: seen once, not recorded yet
  std::vector<float> inv_freq{};                            // [qk_rope_head_dim / 2]
  float cos_sin_factor = 1;
  float* angles = nullptr;  // [context and a page more, 2, qk_rope_head_dim / 2] on the host: cosines, sines, as they
                            // are first needed
  std::shared_ptr<std::byte> angle_storage{};

  Tensor residual{}, x{}, delta{}, shared{}, hidden{};  // [T, hidden_size]
  Tensor q_latent{};                                    // [T, q_lora_rank]
  Tensor q{};                                           // [T, heads * qk_head_dim]; heads: the rank's own
  Tensor kv_a{};                                        // [T, kv_lora_rank + qk_rope_head_dim]
  Tensor latent{};                                      // [T, kv_lora_rank], written while a tap is set
  Tensor attention{};                                   // [T, heads * v_head_dim]
  Tensor index_q{}, index_k{}, index_weights{};         // [T, index_n_heads * index_head_dim], [T, dim], [T, heads]
  float* index_logits = nullptr;                        // [index_logits_elements]: tiles of [rows, columns]
  int64_t index_logits_elements = 0;
  Tensor selection{};                                   // [T, index_topk] i32, of the last full layer
  Tensor router_logits{}, experts{}, expert_weights{};  // [T, n_routed_experts], [T, k] i32, [T, k]
  Tensor gathered{}, logits{};                          // [logit_rows, hidden_size], [logit_rows, vocab_size]
  Tensor logits_share{};                                // [logit_rows, vocabulary_share], with several ranks
  Tensor report{};                                      // [T, 2] i32, see StepOutput

  // MTP
  Tensor eh{};               // [T, 2 * hidden_size]: embedding part, hidden part
  Tensor z{};                // [T, hidden_size]
  Tensor mtp_selection{};    // [T, index_topk] i32
  Tensor draft_sets{};       // [sequences, index_topk + kMaxReusedDrafts] i32: set of each sequence's last row
  Tensor draft_selection{};  // [T, index_topk + kMaxReusedDrafts] i32: the same in row order
};

}  // namespace plumb
