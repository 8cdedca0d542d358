// Contract: exactly what a kernel computes on and promises (trust.md section 1), and the judge that compares it with
// what a place in the model needs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/isa.h"
#include "ops/args.h"
#include "ops/kv.h"
#include "tensor/format.h"

namespace plumb {

struct Limits {  // 0 = no limit
  int64_t m_max = 0;
  int64_t n_multiple = 1, k_multiple = 1;
  int64_t n_max = 0, k_max = 0;
  int64_t heads_max = 0;
  int64_t topk_max = 0;
  int64_t rope_max = 0;      // of MlaAttend: rope part of a latent row
  int64_t shared_bytes = 0;  // shared memory that one block takes
  int64_t ranks_max = 0;
  int64_t message_bytes_max = 0;  // f32 rows of a rank, in ops among ranks
};

// |error| <= c * unit_roundoff(unit) * sum|a b| + c_out * unit_roundoff(unit) * |result| + floor, against float64 on
// the same inputs. Every op's reference states beside it what the sum of magnitudes is.
struct ErrorBound {
  double c = 0;
  DType unit = DType::F32;
  double floor = 0;
};
// Half the distance from 1 to the next number, 2^-p for p significant bits, the leading one included: f32 2^-24, f16
// 2^-11, bf16 2^-8, e4m3 2^-4, e5m2 2^-3, e2m1 2^-2. Rounding a value to nearest moves it by at most that share of it.
double unit_roundoff(DType type);

// A weight of a place whose format is not that of the place's first one: down_proj beside gate_proj.
struct OtherWeight {
  Format format{};
  std::string name{};
  friend bool operator==(const OtherWeight&, const OtherWeight&) = default;
};

// One question to the registry: what a Site needs.
struct Call {
  Op op = Op::Linear;
  Format weight = kF32;               // of ops with weights; of several the first (gate_proj)
  std::vector<OtherWeight> others{};  // one a format that differs from `weight`
  std::vector<Format>
      activations{};  // formats a kernel may read its activations in without losing more than the plan allows
  KvFormat kv = KvFormat::None;  // ops that touch the latent cache
  IndexKeyFormat index_key = IndexKeyFormat::None;
  int64_t m_lo = 1, m_hi = 1;  // rows
  int64_t n = 0, k = 0;        // of the weight
  int64_t heads = 0, topk = 0, rope = 0;
  int ranks = 1;  // that share the model
  Numerics numerics{};
  bool deterministic = false;  // --deterministic: deterministic, batch-invariant kernels of one sum order only
  friend bool operator==(const Call&, const Call&) = default;
};

struct Contract {
  std::string name{};  // "linear.nvfp4.strip16.avx512bf16": stable, shown to users, used by --kernel
  Op op = Op::Linear;
  std::vector<Format> weight{};  // accepted; empty for ops without weights
  bool mixed_weights = false;    // the weights of one place may differ in format
  std::vector<Format> reads{};   // activation formats it computes on (bf16: rounds f32 input to bf16)
  Format writes = kF32;          // what it leaves, before the rounding that `numerics` may ask for
  std::vector<KvFormat> kv{};
  std::vector<IndexKeyFormat> index_key{};
  DType accumulate = DType::F32;
  int promote_every = 1;  // products summed in the instruction's own accumulator before the sum moves to `accumulate`
  Layout weight_layout = Layout::RowMajor;
  Isa arch = Isa::Generic;
  Limits limits{};
  bool round_bf16 = false;  // can round its output to bf16 (Numerics::round_bf16)
  bool norm_two_roundings = false;
  bool index_hadamard = false;
  bool deterministic = false;    // the same bits every time
  bool batch_invariant = false;  // a row's bits don't depend on the other rows or on T
  bool flushes_denormals = false;
  std::string sum_order{};  // kernels of one op naming the same order give equal bits
  ErrorBound error_bound{};
  size_t (*workspace)(const Call&) = nullptr;  // bytes, for m_hi rows; null = none
  int preference = 0;          // order among accepted kernels; a comment beside it says what was measured
  int64_t preferred_from = 1;  // rows a bucket begins at, below which the preference counts as 0
  bool reference = false;      // float64 definition: accepts everything, never chosen by auto
  // Of ops among ranks:
  bool own_device = false;  // no two ranks on one device
  int64_t peer_bytes = 0;   // that each rank keeps in its device for the others to read and write
  std::string absent{};     // why this program cannot run it, where that is known before a device is; empty: it can
};

// One reason of many, never just "no".
struct Refusal {
  std::string field{};  // contract field: "weight.scale", "arch", "limits.k_multiple"
  std::string have{};   // what the model or device has
  std::string wants{};  // what the kernel reads
};

// Checks every field, never stops at the first. Empty: accepted.
std::vector<Refusal> judge(const Contract& contract, const Call& call, const DeviceInfo& device);

}  // namespace plumb
