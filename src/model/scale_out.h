// A calculator, not a plan: what a model would do on many machines, from bytes, arithmetic and a model of the links
// between them. Nothing here is run; docs/scaling.md says what the assumptions rest on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/model_config.h"
#include "model/weight_map.h"
#include "ops/kv.h"

namespace plumb {

// What a collective costs: latency, and bytes over a rate. All-reduce of S bytes over n: latency + 2 (n - 1) / n S /
// rate.
struct Link {
  double latency_us = 0;
  double bytes_per_s = 0;  // of one GPU, each way
};

// From all-reduce times of `gpus` GPUs: "BYTES:MICROSECONDS,...", two sizes or more, by least squares of relative
// errors.
Result<Link> fitted_link(const std::string& measured, int gpus);

struct Machine {
  std::string device{};      // of a profile: "h200"
  int gpus = 8;              // of a machine
  int64_t memory_bytes = 0;  // of one GPU, that may be planned
  double bytes_per_s = 0;    // of its memory, as copies reach it
  double flops = 0;          // dense, of the type that products run in
  Link inside{}, across{};   // between GPUs of one machine, and of several
};
// Errors: Usage, when the profile's rates are not known here; names those that are.
Result<Machine> machine_of(const std::string& device, int64_t memory_bytes, int gpus);

struct ScaleQuestion {
  int machines = 1;
  int64_t context = 32768;  // tokens of each sequence while it decodes
  int64_t prompt = 8192, output = 1024;
  double tpot_ms = 50;  // slowest decode that is accepted
};

// One way to use all of the machines.
struct ScaleLayout {
  std::string name{};        // "replicas of TP 8", "PP 4 x TP 8", "EP 32, attention by data"
  int replicas = 1;          // independent servers behind a load balancer
  int gpus = 1;              // of one replica
  double weight_bytes = 0;   // of the fullest GPU
  double token_bytes = 0;    // of the cache, all layers
  int64_t cache_tokens = 0;  // of one replica, beside the weights; 0: it does not fit
  int64_t batch = 0;         // sequences of one replica that decode at once: what fits, within tpot_ms
  double tpot_ms = 0;        // of that batch
  double first_ms = 0;       // of one sequence alone
  double decode_rate = 0;    // tokens/s of all machines
  double prefill_rate = 0;   // tokens/s of all machines, were they to do nothing else
  std::string limit{};       // what a step's time goes into most, or what keeps the batch from growing
};

// Best first, by decode_rate.
std::vector<ScaleLayout> scale_out(const ModelConfig& config, const WeightMap& map, const KvGeometry& kv,
                                   const Machine& machine, const ScaleQuestion& question);

// A table, and how many of the machines should only prefill, for prompts and answers of the question's lengths.
std::string scale_table(const std::vector<ScaleLayout>& layouts, const Machine& machine, const ScaleQuestion& question);

}  // namespace plumb
