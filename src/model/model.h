// The model: named weights, their places in the plan, and one forward function, the same for every backend.
// Formulas and shapes: model.md section 3; names are the checkpoint's.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/memory.h"
#include "model/model_config.h"
#include "model/split.h"
#include "model/weight_map.h"
#include "ops/executor.h"

namespace plumb {

class RankLink;
class ThreadPool;

// Site ids of one layer's ops; -1 where the layer has no such op.
struct LayerSites {
  SiteId input_norm = -1, q_a = -1, q_norm = -1, q_b = -1, q_rope = -1, kv_a = -1, kv_write = -1;
  SiteId wq_b = -1, index_query = -1, wk = -1, index_key = -1, weights_proj = -1, indexer_logits = -1, topk = -1;
  SiteId attend = -1, o = -1, post_norm = -1, router = -1, moe = -1, mlp = -1;  // mlp: dense MLP or shared expert
  SiteId attention_sum = -1, mlp_sum = -1;                                      // among ranks
};
struct ModelSites {
  SiteId embed = -1, final_norm = -1, gather = -1, finite = -1, lm_head = -1, sample = -1;
  SiteId embed_sum = -1, logits_gather = -1;                                    // among ranks
  SiteId enorm = -1, hnorm = -1, eh_proj = -1, draft_set = -1, head_norm = -1;  // MTP
  std::vector<LayerSites> layers{};                                             // the MTP layer, if any, is the last
};
// What each place in the model asks of a kernel, on one of `ranks` devices whose share of the weights `map` is. Needs
// no weights in memory. `kv` fixes the cache formats.
struct SiteList {
  std::vector<SiteDecl> decls{};
  ModelSites ids{};
};
SiteList declare_sites(const ModelConfig& config, const WeightMap& map, const KvGeometry& kv, const Numerics& numerics,
                       std::span<const Format> activations, const Ranks& ranks = {});

struct LayerWeights {
  FloatVector input_norm{}, post_norm{}, q_a_norm{}, kv_a_norm{};  // norm weights, decoded exactly to f32
  Weight q_a{}, q_b{}, kv_a{}, kv_b{}, o{};
  bool has_indexer = false;  // full layer
  Weight wq_b{}, wk{}, weights_proj{};
  FloatVector k_norm{}, k_norm_bias{};
  bool sparse = false;
  Weight gate{}, up{}, down{};  // dense MLP, or the shared expert
  Weight router{};
  FloatVector correction_bias{};
  std::vector<Weight> expert_gate{}, expert_up{}, expert_down{};
};

struct LoadProgress {
  std::string_view phase{};  // "check" (values against formats.md section 5), then "prepare"
  int64_t done_bytes = 0, total_bytes = 0;
};
struct LoadOptions {
  bool check_values = true;
  std::function<void(const LoadProgress&)> progress{};  // called on the loading thread, a few hundred times at most
  Memory memory = host_memory();                        // where kernels read weights
  Stream* stream = nullptr;                             // for uploads, when that is not host memory
};

// Owns what was prepared for kernels; refers to the checkpoint, which must outlive it.
class ModelWeights {
 public:
  Weight embed{}, lm_head{};
  int32_t first_token = 0;  // of the vocabulary, the first that `embed` has
  FloatVector final_norm{};
  std::vector<LayerWeights> layers{};  // + 1 when the MTP layer is loaded
  bool has_mtp = false;
  FloatVector enorm{}, hnorm{}, head_norm{};
  Weight eh_proj{};

  // What load() needs to know besides its options.
  struct Source {
    const ModelConfig& config;
    const WeightMap& map;
    const Plan& plan;
    const ModelSites& sites;
    const Registry& registry;
  };
  // Prepares every weight in the layout its planned kernels read (exact conversions only), all workers on one weight at
  // a time. Weights whose kernels read the file's own layout stay where they are mapped.
  static Result<ModelWeights> load(const Source& source, ThreadPool& pool, const LoadOptions& options = {});
  int64_t prepared_bytes() const { return prepared_bytes_; }

 private:
  std::vector<std::shared_ptr<std::byte>> storage_{};
  std::vector<FloatVector> biases_{};
  int64_t prepared_bytes_ = 0;
};

// All layers' pages. Every layer uses the same page ids; layers without an indexer have no index keys.
class KvCache {
 public:
  static Result<KvCache> make(const ModelConfig& config, bool with_mtp, const KvGeometry& geometry, int64_t pages,
                              const Memory& memory = host_memory());
  KvView view(int layer) const { return views_[static_cast<size_t>(layer)]; }
  int64_t pages() const { return pages_; }
  const KvGeometry& geometry() const { return geometry_; }
  int64_t bytes() const { return bytes_; }
  // Zeroes one page in all layers.
  void wipe(int32_t page, const Memory& memory, Stream& stream);
  // Bytes of one page over all layers.
  struct PageBytes {
    int64_t latent = 0, index_keys = 0;
  };
  static PageBytes page_bytes_of(const ModelConfig& config, bool with_mtp, const KvGeometry& geometry);

 private:
  KvGeometry geometry_{};
  std::vector<KvView> views_{};
  std::shared_ptr<std::byte> storage_{};
  int64_t pages_ = 0, bytes_ = 0;
};

// Activations of one step, allocated once for the largest step; a decode step allocates nothing.
struct ForwardBuffers;
struct ForwardBuffersDeleter {
  void operator()(ForwardBuffers* buffers) const;
};
using ForwardBuffersPtr = std::unique_ptr<ForwardBuffers, ForwardBuffersDeleter>;

struct ForwardLimits {
  int rows = 1;        // of one step
  int logit_rows = 1;  // rows of one step whose logits are wanted
  int context = 1;     // longest sequence, tokens
  int sequences = 0;   // rows of the page table; 0: as many as `rows`
  int page_tokens = 64;
  bool mtp = false;              // mtp_forward will be called
  int ranks = 1;                 // that divide the heads
  int64_t vocabulary_share = 0;  // columns of the logits that a rank computes at most; 0: all
};
// Bytes make_buffers would take: part of the plan's memory.
int64_t forward_buffer_bytes(const ModelConfig& config, const ForwardLimits& limits);
// And on the host, filled as positions are first computed: their angles.
int64_t angle_table_bytes(const ModelConfig& config, const ForwardLimits& limits);
Result<ForwardBuffersPtr> make_buffers(const ModelConfig& config, const ForwardLimits& limits,
                                       const Memory& memory = host_memory());

struct StepInput {
  const int32_t* token_ids = nullptr;  // [paging.rows]
  Paging paging{};
  std::span<const int32_t> logit_rows{};  // rows whose logits are wanted, ascending
  // Of mtp_forward: which row of `hidden` each row continues. Empty: its own.
  std::span<const int32_t> hidden_rows{};
  int columns = 0;  // index logits are at least as wide as for a row of that many tokens (to record steps ahead)
};
struct StepOutput {
  Tensor logits{};  // [logit_rows, vocab_size] f32, in the buffers: valid until the next step of either kind
  Tensor hidden{};  // [rows, hidden_size], after model.norm: what lm_head and the MTP layer read; valid until the next
                    // step of the same kind (forward or mtp_forward)
  // [rows, 2] i32: of forward, 1 where `hidden` has neither NaN nor infinity; what observers in the stream have marked
  Tensor report{};
};

// Everything a step needs; one per engine.
struct Forward {
  const ModelConfig& config;
  const ModelWeights& weights;
  const ModelSites& sites;
  Executor& executor;
  KvCache& cache;
  ForwardBuffers& buffers;
  Numerics numerics{};
  double latent_norm_eps = 1e-6;  // model.md 3.2: 1e-6 (transformers) or rms_norm_eps (engines)
  // With several ranks: rank 0 leads, its calls of forward and mtp_forward are made by the others too (rank_link.h).
  RankLink* link = nullptr;
  int first_expert = 0;  // of the routed experts, the first that this rank holds
};

// One pass over the step's rows: writes their keys to the cache, then attends over it.
StepOutput forward(Forward& f, const StepInput& step);

// The MTP layer (model.md 3.11). Row r: hidden[hidden_rows[r]] = h_t (or z of the draft before), token_ids[r] = token
// t+1, paging.positions[r] = t. Gives draft logits (of token t+2) for logit_rows and z for every row
// (StepOutput::hidden).
// With `reuse_selection` (later drafts of a round; one row a sequence, sequences numbered as in the step before, at
// most kMaxReusedDrafts times) the set that the sequence's last row had is used, with the new position appended,
// instead of running the indexer; index keys are written all the same. `hidden` may be the StepOutput::hidden of either
// kind of step.
inline constexpr int kMaxReusedDrafts = 8;
StepOutput mtp_forward(Forward& f, const StepInput& step, Tensor hidden, bool reuse_selection);

}  // namespace plumb
