// Planted faults, in builds with PLUMB_FAULTS only: an op of the running plan computes what a known bug would have made
// it compute, so that each part of the guard can be tested by what it must find.
//
// A fault lives in the executor, as an observer in front of all others: the kernel runs, then the faulty computation
// replaces the outputs of the rows concerned. The op's arguments stay right, so a witness of the same call is right
// too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/executor.h"

namespace plumb {

struct LoadedModel;

enum class PlantedKind : uint8_t {
  Nan,                // one output element
  Inf,                // one output element
  ScaleFormat,        // block scales read as another type: f32 bits as ue8m0, ue8m0 or ue4m3 bytes as the other
  NibbleOrder,        // 4-bit elements in the other order
  BlockOffset,        // each block takes its neighbour's scale
  KvScaleDropped,     // FP8 cache scales taken as 1
  RopeHalves,         // rotation of halves in place of interleaved pairs, or the reverse
  RopeTheta,          // another base
  TopkOffByOne,       // the row's own position left out
  TopkPatternShort,   // the layer keeps the selection of the layer before
  RouterBiasDropped,  // experts chosen without the correction bias
  StaleGraphRow,      // the row has what the launch before wrote
  MissingFence,       // one tile of 16 columns not written
  ExpertSwapped,      // two experts take each other's place
  RankSkew,           // one rank has other bits than the rest: the lowest of an element, or two choices exchanged
};
inline constexpr int kPlantedKindCount = static_cast<int>(PlantedKind::RankSkew) + 1;
std::string_view to_string(PlantedKind kind);

enum class FaultPhase : uint8_t { Any, Prefill, Decode };  // decode: no sequence has two rows in the pass

struct Fault {
  PlantedKind kind = PlantedKind::Nan;
  std::string place{};  // a place of the plan, or an op: each of its places
  FaultPhase phase = FaultPhase::Any;
  int row = -1;           // of the pass; -1: all
  int rows = 0;           // only in passes of so many rows; 0: any
  int from_position = 0;  // only rows of tokens from this position on
  bool only_hot = false;  // of the sampler: only rows above temperature 0
  int column = 0;         // element, tile or expert
  int rank = -1;          // only on this one; -1: on all, and of rank_skew the last
  int64_t after = 0;      // launches of a place that stay right
  std::string kernel{};   // only while this kernel runs there; empty: any

  std::string to_string() const;  // as parse_fault reads it
};

// "KIND@PLACE" with ",key=value" for phase (prefill, decode), row, rows, from, hot (1), column, after, kernel, rank.
// Errors (Usage) name the kinds and keys there are.
Result<Fault> parse_fault(std::string_view text);

// What a place offers a fault to live in. Empty: it can live there; else why not.
std::string why_not(PlantedKind kind, const Call& call);

// What planted faults did so far, seen where they strike: the right outputs against those left behind.
struct FaultLog {
  int64_t launches = 0;      // struck
  int64_t rows_changed = 0;  // whose bytes differ from the right ones
};

// Plants faults into the plan of a loaded model, in place of those planted before: every executor of that plan runs
// them from then on, before its other observers. Of several ranks each is given the same faults. `registry` must
// outlive the plan. Errors: Usage for a place or rank that does not exist, Unsupported when no place named can carry
// the kind.
Result<std::shared_ptr<const FaultLog>> plant_faults(const std::vector<Fault>& faults, const Registry& registry,
                                                     LoadedModel& model);

}  // namespace plumb
