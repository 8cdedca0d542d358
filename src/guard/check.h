// Differential diagnosis: every op of a plan against the reference on the same inputs, in every phase a server goes
// through; what else fits the first op that fails; and whether different paths to the same logits agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "guard/divergence.h"
#include "guard/witness.h"
#include "model/runner.h"

namespace plumb {

struct CheckOptions {
  std::vector<int32_t> ids{};  // the prompt; see check_prompt
  int decode_steps = 4;        // after the prompt, one token at a time
  int sequences = 8;           // largest batch; every size from 2 on is decoded once
  int64_t rows_judged = 0;     // of each launch; 0: all
  bool first_only = false;     // once an op is out of bound, nothing else is judged or tried
  bool paths = true;           // also chunks and batches; else the prompt and its decode steps only
};
// Tokens that are no text: as many as it takes for sparse attention to select, where the context allows.
std::vector<int32_t> check_prompt(const ModelConfig& config, int64_t longest);

// One op out of bound, where it happened first.
struct OpFinding {
  SiteId site = -1;
  std::string place{}, op{}, kernel{};
  int layer = -1;
  std::string phase{};  // "prefill of 96 rows", "decode, batch of 5"
  int32_t row = -1, position = -1;
  Judgement judgement{};

  // "layers.3.self_attn.o_proj (linear, kernel ...) in prefill of 96 rows: y[3, 17]: ..."
  std::string to_string() const;
};

// Another kernel that the place accepts, on the inputs of the finding.
struct KernelTrial {
  std::string kernel{};
  std::string flag{};  // what selects it
  bool planned = false, passes = false;
  std::string figure{};  // share of the bound used, or why it can't be tried
};

// The worst an op came to anywhere.
struct SiteResult {
  std::string place{}, op{}, kernel{};
  int layer = -1;
  double worst = 0;  // of its bound
  int64_t compared = 0, outside = 0;
};

// Two paths to the same logits.
struct PathResult {
  std::string name{};  // "decode against prefill"
  double figure = 0;   // largest |difference| of a logit
  double bound = 0;
  bool passes() const { return figure <= bound; }  // NaN fails
};

// The same prompt and decode steps with another type of KV cache.
struct CacheTrial {
  std::string kv{};
  bool passes = false;
  std::string verdict{};     // that run's own, or why it can't be planned
  std::string divergence{};  // of its logits from the planned cache's; empty: not measured
};

struct CheckReport {
  std::vector<SiteResult> sites{};    // in the order they run
  std::vector<OpFinding> findings{};  // the first is the verdict
  std::vector<KernelTrial> trials{};  // for the verdict's op
  std::vector<PathResult> paths{};
  std::vector<CacheTrial> caches{};
  int64_t launches = 0, elements = 0;  // judged, compared
  std::string plan{};                  // fingerprint

  bool passes() const;
  // One sentence: what is wrong, or that nothing is.
  std::string verdict() const;
  // Flags that select kernels which pass where the verdict's does not, at all places of the op when the same kernel
  // fails at several; and, of an op on the KV cache, its types with which nothing is wrong. Empty: none passes, or
  // nothing is wrong.
  std::vector<std::string> flags() const;
};

// Runs the prompt on `runner`, whose plan must allow options.sequences sequences of prompt and decode steps. Sequences
// are reset before and after. Errors: Usage for ids outside the vocabulary.
Result<CheckReport> check_ops(ModelRunner& runner, const Registry& registry, ThreadPool* pool,
                              const CheckOptions& options);

// The same for one launch that was recorded elsewhere: its outputs, and every kernel its place accepts.
CheckReport check_record(const Plan& plan, const Registry& registry, ThreadPool* pool, const OpRecord& record,
                         const std::optional<WitnessDevice>& device = {});

// A captured launch in front of a check of the whole model: what is wrong there is the verdict.
CheckReport with_capture(CheckReport capture, CheckReport model);

// How far the outputs of each layer are from those of the reference backend, errors piled up; by layer, relative to the
// norm. `reference` runs the same checkpoint and caches.
struct LayerDrift {
  std::vector<double> relative{};  // of each layer
  Divergence logits{};             // reference to plan
};
Result<LayerDrift> measure_drift(ModelRunner& reference, ModelRunner& runner, const std::vector<int32_t>& ids);

}  // namespace plumb
