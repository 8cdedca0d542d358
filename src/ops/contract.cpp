#include "ops/contract.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace plumb {
namespace {

template <class T>
std::string join(const std::vector<T>& values, std::string (*text)(const T&)) {
  std::string out;
  for (const T& value : values) out += (out.empty() ? "" : " or ") + text(value);
  return out.empty() ? "nothing" : out;
}

template <class T>
bool contains(const std::vector<T>& values, const T& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

std::string format_text(const Format& format) { return format.to_string(); }
std::string kv_text(const KvFormat& format) { return to_string(format); }
std::string index_text(const IndexKeyFormat& format) { return to_string(format); }

// Names the first part of the format that differs from every accepted one, so that "f32 against ue8m0" is said as such.
std::string weight_field(const Contract& contract, const Format& have) {
  bool element = false;
  bool blocks = false;
  for (const Format& accepted : contract.weight) {
    if (accepted.element != have.element) continue;
    element = true;
    blocks |= accepted.block_n == have.block_n && accepted.block_k == have.block_k;
  }
  return !element ? "weight.element" : !blocks ? "weight.block" : "weight.scale";
}

void judge_formats(const Contract& c, const Call& call, std::vector<Refusal>& out) {
  if (!c.weight.empty() && !contains(c.weight, call.weight))
    out.push_back({weight_field(c, call.weight), call.weight.to_string(), join<Format>(c.weight, format_text)});
  for (const OtherWeight& other : call.others) {
    if (c.weight.empty()) break;
    if (!contains(c.weight, other.format))
      out.push_back({weight_field(c, other.format), other.name + " in " + other.format.to_string(),
                     join<Format>(c.weight, format_text)});
    else if (!c.mixed_weights)
      out.push_back({"mixed_weights",
                     call.weight.to_string() + " and " + other.name + " in " + other.format.to_string(), "one format"});
  }
  if (!c.reads.empty() && !call.activations.empty() &&
      std::none_of(c.reads.begin(), c.reads.end(), [&](const Format& f) { return contains(call.activations, f); }))
    out.push_back({"reads", join<Format>(call.activations, format_text), join<Format>(c.reads, format_text)});
  if (call.kv != KvFormat::None && !c.kv.empty() && !contains(c.kv, call.kv))
    out.push_back({"kv", to_string(call.kv), join<KvFormat>(c.kv, kv_text)});
  if (call.index_key != IndexKeyFormat::None && !c.index_key.empty() && !contains(c.index_key, call.index_key))
    out.push_back({"index_key", to_string(call.index_key), join<IndexKeyFormat>(c.index_key, index_text)});
}

void judge_limits(const Limits& l, const Call& call, const DeviceInfo& device, std::vector<Refusal>& out) {
  const auto at_most = [&](const char* field, int64_t have, int64_t limit) {
    if (limit > 0 && have > limit) out.push_back({field, std::to_string(have), "at most " + std::to_string(limit)});
  };
  const auto multiple = [&](const char* field, int64_t have, int64_t of) {
    if (of > 1 && have % of != 0) out.push_back({field, std::to_string(have), "a multiple of " + std::to_string(of)});
  };
  at_most("limits.m_max", call.m_hi, l.m_max);
  at_most("limits.n_max", call.n, l.n_max);
  at_most("limits.k_max", call.k, l.k_max);
  at_most("limits.heads_max", call.heads, l.heads_max);
  at_most("limits.topk_max", call.topk, l.topk_max);
  at_most("limits.rope_max", call.rope, l.rope_max);
  at_most("limits.ranks_max", call.ranks, l.ranks_max);
  if (const int64_t bytes = call.m_hi * call.k * 4; l.message_bytes_max > 0 && bytes > l.message_bytes_max)
    out.push_back({"limits.message_bytes_max",
                   std::to_string(bytes) + " bytes, of " + std::to_string(call.m_hi) + " rows",
                   "at most " + std::to_string(l.message_bytes_max)});
  multiple("limits.n_multiple", call.n, l.n_multiple);
  multiple("limits.k_multiple", call.k, l.k_multiple);
  if (l.shared_bytes > device.shared_bytes && device.is_gpu())
    out.push_back({"limits.shared_bytes", std::to_string(device.shared_bytes) + " bytes a block",
                   std::to_string(l.shared_bytes)});
}

void judge_numerics(const Contract& c, const Call& call, std::vector<Refusal>& out) {
  const auto need = [&](const char* field, bool wanted, bool offered, const char* what) {
    if (wanted && !offered) out.push_back({field, what, std::string("no ") + what});
  };
  need("round_bf16", call.numerics.round_bf16, c.round_bf16, "outputs rounded to bf16");
  need("norm_two_roundings", call.numerics.norm_two_roundings, c.norm_two_roundings, "two roundings in RMSNorm");
  need("index_hadamard", call.numerics.index_hadamard, c.index_hadamard, "Hadamard rotation of index keys");
  need("deterministic", call.deterministic, c.deterministic, "the same bits every time");
  need("batch_invariant", call.deterministic, c.batch_invariant, "bits independent of the batch");
}

void judge_ranks(const Contract& c, const DeviceInfo& device, std::vector<Refusal>& out) {
  if (c.own_device && device.ranks > 1)
    out.push_back({"own_device", std::to_string(device.ranks) + " ranks on one device", "a device for each rank"});
  if (c.peer_bytes > 0 && !device.unreachable.empty())
    out.push_back({"peer_bytes", device.unreachable, "devices that reach each other's memory"});
  if (!c.absent.empty()) out.push_back({"absent", c.absent, "a program and a machine with it"});
}

}  // namespace

std::string to_string(Op op) {
  static constexpr std::array<std::string_view, kOpCount> kNames{
      "embed",           "rms_norm",       "add_rms_norm", "linear",     "rope",       "kv_write",      "index_query",
      "index_key_write", "indexer_logits", "topk",         "mla_attend", "router",     "mlp",           "moe",
      "gather_rows",     "finite_rows",    "draft_set",    "sample",     "all_reduce", "gather_columns"};
  return std::string(kNames[static_cast<size_t>(op)]);
}

double unit_roundoff(DType type) {
  switch (type) {
    case DType::F64:
      return 0x1p-53;
    case DType::F32:
      return 0x1p-24;
    case DType::F16:
      return 0x1p-11;
    case DType::BF16:
      return 0x1p-8;
    case DType::F8E4M3:
      return 0x1p-4;
    case DType::F8E5M2:
      return 0x1p-3;
    case DType::F4E2M1:
      return 0x1p-2;
    default:
      return 0;
  }
}

std::vector<Refusal> judge(const Contract& contract, const Call& call, const DeviceInfo& device) {
  std::vector<Refusal> refusals;
  if (contract.op != call.op) refusals.push_back({"op", to_string(call.op), to_string(contract.op)});
  if (!device.has(contract.arch)) {
    std::string has;
    for (const Isa isa : device.isas) has += (has.empty() ? "" : ", ") + to_string(isa);
    if (has.empty()) has = "no architecture that kernels are written for";
    refusals.push_back({"arch", device.name + " with " + has, to_string(contract.arch)});
  }
  judge_formats(contract, call, refusals);
  judge_limits(contract.limits, call, device, refusals);
  judge_numerics(contract, call, refusals);
  judge_ranks(contract, device, refusals);
  return refusals;
}

}  // namespace plumb
