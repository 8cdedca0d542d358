// An op's arguments as a bug would have them: the part of planted faults that changes what is computed.
#pragma once

#include <vector>

#include "guard/fault_rows.h"
#include "guard/fault_weights.h"

namespace plumb {

struct ModelConfig;

// Everything a changed set of arguments points to; lives until the faulty launch is over.
struct FaultyArgs {
  AnyArgs args{};
  std::vector<std::vector<Weight>> weights{};
};

struct FaultContext {
  const OpCall& call;
  const Paging& pass;  // host memory
  Executor& executor;
  DeviceBytes& memory;
  MisreadWeights& weights;
  const ModelConfig& config;
};

// True when `kind` is a computation on other arguments (and not an edit of the results). Fills in `out.args`, which are
// the right ones before.
bool change_args(const Fault& fault, const FaultContext& context, FaultyArgs& out);
// What a rotation of halves leaves in the cache once change_args has had the kernel rotate pairs: elements back in
// their places. For KvWrite and RopeHalves only.
void finish_rope_halves(const KvWriteArgs& args, const FaultContext& context);

}  // namespace plumb
