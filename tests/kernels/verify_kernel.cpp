#include "verify_kernel.h"

#include <algorithm>

#include "base/thread_pool.h"

namespace plumb::testing {
namespace {

constexpr uint8_t kNanPoison = 0xff;
constexpr uint8_t kOtherPoison = 0x41;  // finite: about 12 as a float

struct Pools {
  ThreadPool two{2}, three{3};
};
Pools& pools() {
  static Pools kPools;
  return kPools;
}

bool all_in_place(OpCase& one, const Scratch& scratch, const char* when, Problems& problems) {
  const bool whole = one.whole() && scratch.memory.fences_whole();
  if (!whole) problems.push_back(std::string("wrote outside its output, or into its input, ") + when);
  return whole;
}

void launch_and_wait(const Kernel& kernel, OpCase& one, Stream& stream, int64_t first, int64_t count) {
  one.launch(kernel, stream, first, count);
  wait_for_device();
}

std::vector<std::byte> run_rows(const Kernel& kernel, OpCase& one, ThreadPool* pool, uint8_t poison) {
  Scratch scratch(kernel.contract, one.call());
  Stream stream = scratch.stream(pool);
  one.reset(poison);
  launch_and_wait(kernel, one, stream, 0, one.rows());
  return one.outputs();
}

std::vector<std::byte> run_row_by_row(const Kernel& kernel, OpCase& one) {
  Scratch scratch(kernel.contract, one.call());
  Stream stream = scratch.stream(&pools().two);
  one.reset(kOtherPoison);
  for (int64_t r = 0; r < one.rows(); ++r) launch_and_wait(kernel, one, stream, r, 1);
  return one.outputs();
}

Call asked(const Contract& contract, const OpCase& one) {
  Call call = one.call();
  call.activations = contract.reads;
  return call;
}

bool accepted(const Contract& contract, const Call& call, Problems& problems) {
  const DeviceInfo device{.name = "test", .isas = {Isa::Generic, contract.arch}};
  for (const Refusal& refusal : judge(contract, call, device))
    problems.push_back("refused: " + refusal.field + " " + refusal.have);
  return problems.empty();
}

}  // namespace

Problems verify_kernel(const Kernel& kernel, const Registry& registry, OpCase& one) {
  Problems problems;
  const Contract& contract = kernel.contract;
  if (!accepted(contract, asked(contract, one), problems)) return problems;
  if (!one.prepare(registry, contract.weight_layout))
    return {"no conversion to its layout, or one that depends on its parts"};
  Stream alone;
  one.expect(alone);

  Scratch scratch(contract, one.call());
  Stream stream = scratch.stream(&pools().two);
  one.reset(kNanPoison);
  launch_and_wait(kernel, one, stream, 0, one.rows());
  one.check(contract, problems);
  if (!all_in_place(one, scratch, "in a step", problems)) return problems;
  const std::vector<std::byte> first = one.outputs();

  if (contract.deterministic) {
    if (run_rows(kernel, one, &pools().two, kOtherPoison) != first) problems.push_back("not the same bits again");
    if (run_rows(kernel, one, nullptr, kNanPoison) != first) problems.push_back("other bits without workers");
    if (run_rows(kernel, one, &pools().three, kNanPoison) != first) problems.push_back("other bits with three workers");
  }
  if (contract.batch_invariant && run_row_by_row(kernel, one) != first)
    problems.push_back("other bits in other batches");
  all_in_place(one, scratch, "row by row", problems);
  return problems;
}

Problems same_bits(const Kernel& a, const Kernel& b, const Registry& registry, OpCase& one) {
  Problems refused;
  if (!accepted(a.contract, asked(a.contract, one), refused) || !accepted(b.contract, asked(b.contract, one), refused))
    return {};
  if (!one.prepare(registry, a.contract.weight_layout)) return {"no conversion"};
  Stream alone;
  one.expect(alone);
  const std::vector<std::byte> bits = run_rows(a, one, &pools().two, kNanPoison);
  if (!one.prepare(registry, b.contract.weight_layout)) return {"no conversion"};
  if (run_rows(b, one, &pools().two, kNanPoison) != bits) return {"other bits"};
  return {};
}

Call accepted_call(const Contract& contract) {
  Call call{.op = contract.op, .activations = contract.reads};
  if (!contract.weight.empty()) call.weight = contract.weight.front();
  if (!contract.kv.empty()) call.kv = contract.kv.front();
  if (!contract.index_key.empty()) call.index_key = contract.index_key.front();
  call.n = contract.limits.n_multiple;
  call.k = contract.limits.k_multiple;
  call.heads = call.topk = 1;
  call.deterministic = contract.deterministic && contract.batch_invariant;
  return call;
}

std::vector<Violation> violations(const Contract& contract, const Call& good) {
  std::vector<Violation> out;
  const DeviceInfo device{.name = "all", .isas = {Isa::Generic, contract.arch}};
  const auto add = [&](std::string field, auto change) {
    Violation violation{.field = std::move(field), .call = good, .device = device};
    change(violation.call);
    out.push_back(std::move(violation));
  };
  const auto accepts = [](const auto& list, const auto& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };

  add("op", [&](Call& c) { c.op = contract.op == Op::Linear ? Op::Sample : Op::Linear; });
  if (contract.arch != Isa::Generic)
    out.push_back({.field = "arch", .call = good, .device = {.name = "old", .isas = {Isa::Generic}}});
  if (!contract.weight.empty()) {
    add("weight.element", [](Call& c) { c.weight = Format{DType::I64}; });
    Format scale = contract.weight.back();
    scale.global_scale = !scale.global_scale;
    if (!accepts(contract.weight, scale)) add("weight.scale", [&](Call& c) { c.weight = scale; });
    Format block = contract.weight.back();
    block.block_k = 48;
    add("weight.block", [&](Call& c) { c.weight = block; });
    for (const auto& [mine, other] :
         {std::pair{kFp8BlockF32, kFp8BlockUe8m0}, std::pair{kFp8BlockUe8m0, kFp8BlockF32}}) {
      if (accepts(contract.weight, mine) && !accepts(contract.weight, other))
        add("weight.scale", [&](Call& c) { c.weight = other; });
    }
  }
  if (!contract.reads.empty()) add("reads", [](Call& c) { c.activations = {Format{DType::I8}}; });
  for (const KvFormat kv : {KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8Tile128}) {
    if (!contract.kv.empty() && !accepts(contract.kv, kv)) add("kv", [&](Call& c) { c.kv = kv; });
  }
  for (const IndexKeyFormat key : {IndexKeyFormat::F32, IndexKeyFormat::Bf16, IndexKeyFormat::Fp8}) {
    if (!contract.index_key.empty() && !accepts(contract.index_key, key))
      add("index_key", [&](Call& c) { c.index_key = key; });
  }
  const Limits& l = contract.limits;
  if (l.m_max > 0) add("limits.m_max", [&](Call& c) { c.m_hi = l.m_max + 1; });
  if (l.n_max > 0) add("limits.n_max", [&](Call& c) { c.n = (l.n_max / l.n_multiple + 1) * l.n_multiple; });
  if (l.k_max > 0) add("limits.k_max", [&](Call& c) { c.k = (l.k_max / l.k_multiple + 1) * l.k_multiple; });
  if (l.heads_max > 0) add("limits.heads_max", [&](Call& c) { c.heads = l.heads_max + 1; });
  if (l.topk_max > 0) add("limits.topk_max", [&](Call& c) { c.topk = l.topk_max + 1; });
  if (l.rope_max > 0) add("limits.rope_max", [&](Call& c) { c.rope = l.rope_max + 1; });
  if (l.n_multiple > 1) add("limits.n_multiple", [&](Call& c) { c.n = l.n_multiple + 1; });
  if (l.k_multiple > 1)
    add("limits.k_multiple", [&](Call& c) { c.k = l.k_max == l.k_multiple ? l.k_multiple / 2 : l.k_multiple + 1; });
  if (l.ranks_max > 0) add("limits.ranks_max", [&](Call& c) { c.ranks = static_cast<int>(l.ranks_max) + 1; });
  if (l.message_bytes_max > 0)
    add("limits.message_bytes_max", [&](Call& c) { c.m_hi = l.message_bytes_max / (4 * c.k) + 1; });
  if (contract.own_device) {
    add("own_device", [](Call&) {});
    out.back().device.ranks = 2;
  }
  if (contract.peer_bytes > 0) {
    add("peer_bytes", [](Call&) {});
    out.back().device.unreachable = "no way from one to the other";
  }
  if (!contract.round_bf16) add("round_bf16", [](Call& c) { c.numerics.round_bf16 = true; });
  if (!contract.norm_two_roundings) add("norm_two_roundings", [](Call& c) { c.numerics.norm_two_roundings = true; });
  if (!contract.index_hadamard) add("index_hadamard", [](Call& c) { c.numerics.index_hadamard = true; });
  if (!contract.deterministic && contract.batch_invariant)
    add("deterministic", [](Call& c) { c.deterministic = true; });
  if (contract.deterministic && !contract.batch_invariant)
    add("batch_invariant", [](Call& c) { c.deterministic = true; });
  return out;
}

}  // namespace plumb::testing
