// Plan: the kernel of every place in the model and every row bucket, the candidates refused and why. Made once, before
// weights are read; afterwards a step only looks up and launches. There is no fallback at run time.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "ops/kernel.h"

namespace plumb {

class OpObserver;
using SiteId = int;

// A place in the model: "layers.12.mlp.experts". The address used by plan, taps, sentinels, provenance and faults.
struct SiteDecl {
  std::string name{};
  int layer = -1;  // -1: outside the layers
  Call call{};     // rows are filled in per bucket
};

struct RowBucket {
  int64_t m_lo = 1, m_hi = 1;
};

struct Candidate {
  const Kernel* kernel = nullptr;
  std::vector<Refusal> refusals{};  // empty: accepted
};

struct Choice {
  RowBucket rows{};
  const Kernel* kernel = nullptr;
  std::string why{};  // "preference 40 of 3 accepted", "pinned by --kernel", "--backend reference"
  std::shared_ptr<const std::vector<Candidate>> candidates{};  // all of the op, chosen one included; equal places share
};

struct Site {
  SiteDecl decl{};
  std::vector<Choice> choices{};  // ascending, covering 1 ... max rows
};

struct FlagLine {  // asked and effective value of one flag: they never differ silently
  std::string name{}, asked{}, effective{}, source{};
};

// What a step does. Its rows decide the bucket, and so the kernel, of every place it runs.
struct Phase {
  std::string name{};  // "prefill", "chunked prefill", "decode", "verify", "draft"
  RowBucket rows{};
  bool draft = false;    // runs the next-n layer; the others run the model's own layers
  std::string absent{};  // why this plan has no such step; empty: it has
};

// A re-arrangement that loading makes, of `weights` weights of one format.
struct ConversionLine {
  Layout to = Layout::RowMajor;
  Format format{};
  bool rounding = false;
  int64_t weights = 0, bytes = 0;  // bytes: in the new layout, on one device
};

// Something that looks wrong, and what becomes of it.
struct Warning {
  std::string verdict{};  // "harmless here", "costs accuracy: <measured>", "will fail"
  std::string text{};
};

// What there is, and how much of the model's context it holds.
struct Fit {
  int devices = 1;                // each holds what `memory` lists
  int64_t device_bytes = 0;       // 0: unknown
  int64_t usable = 0;             // of it, after what stays free for the system
  std::string bound{};            // what sets device_bytes
  int64_t planned = 0;            // sum of `memory`
  int64_t cache_tokens = 0;       // that the planned cache holds
  int64_t cache_tokens_most = 0;  // that one filling the device would hold
  int64_t context = 0;            // tokens of one sequence
  int64_t sequences = 0;          // of that length at once
};

using KernelPin = std::pair<std::string, std::string>;  // what (see pins.h), name of a kernel

struct PlanOptions {
  std::string backend = "auto";     // auto | cpu | reference
  std::vector<KernelPin> pinned{};  // --kernel op=name, place=name or layers.*.place=name
  std::vector<RowBucket> buckets{};
  bool deterministic = false;
};

class Plan {
 public:
  std::vector<Site> sites{};
  std::vector<FlagLine> flags{};
  std::vector<std::string> notes{};
  std::vector<Warning> warnings{};
  std::vector<Phase> phases{};
  std::vector<ConversionLine> conversions{};
  std::vector<std::pair<std::string, int64_t>> memory{};       // category, bytes; of one device
  std::vector<std::pair<std::string, int64_t>> host_memory{};  // beside it
  Fit fit{};
  DeviceInfo device{};
  std::string numeric_profile{};
  size_t workspace_bytes = 0;  // largest of any chosen kernel
  int draft_layer = -1;        // number of the next-n layer; -1: the plan has none
  // Faults that every executor of this plan runs in front of its observers, in builds with PLUMB_FAULTS. The member is
  // in every build: so that all but a few sources compile alike in both.
  std::shared_ptr<OpObserver> planted{};

  const Kernel& kernel(SiteId site, int64_t rows) const;
  std::string fingerprint() const;  // 16 hex digits over all that decides numbers
  nlohmann::ordered_json to_json() const;
  std::string to_table() const;  // for people; equal lines of neighbouring layers are folded
};

// Judges every kernel of the registry for every site and bucket. Error (Unsupported) names all sites without a kernel
// and every pinned kernel that was refused, with reasons and what would work.
// The plan points into the registry, which must outlive it.
Result<Plan> resolve(std::vector<SiteDecl> sites, const Registry& registry, const DeviceInfo& device,
                     const PlanOptions& options);
Result<Plan> resolve(std::vector<SiteDecl>, Registry&&, const DeviceInfo&, const PlanOptions&) = delete;

}  // namespace plumb
