#include "op_case.h"

#include <algorithm>

#include "kernels/reference/reference.h"

namespace plumb::testing {

const Kernel& reference_of(Op op) {
  static const std::vector<Kernel> kKernels = reference_kernels();
  const auto found =
      std::find_if(kKernels.begin(), kKernels.end(), [&](const Kernel& k) { return k.contract.op == op; });
  PLUMB_CHECK(found != kKernels.end(), "op without a reference kernel");
  return *found;
}

Cases make_cases(const Contract& contract) {
  Cases cases;
  add_linear_cases(contract, cases);
  add_expert_cases(contract, cases);
  add_row_cases(contract, cases);
  add_cache_cases(contract, cases);
  add_attend_cases(contract, cases);
  add_sample_cases(contract, cases);
  add_collective_cases(contract, cases);
  return cases;
}

Scratch::Scratch(const Contract& contract, const Call& call)
    : memory(contract.workspace == nullptr ? 0 : contract.workspace(call)) {}

Stream Scratch::stream(ThreadPool* pool) {
  return {.pool = pool, .workspace = memory.bytes() == 0 ? nullptr : memory.data(), .workspace_bytes = memory.bytes()};
}

std::vector<int64_t> edge_sizes(std::vector<int64_t> wanted, int64_t multiple, int64_t max) {
  std::vector<int64_t> out;
  for (const int64_t size : wanted) {
    const int64_t of = std::max<int64_t>(multiple, 1);
    const int64_t fitted = (size + of - 1) / of * of;
    if ((max == 0 || fitted <= max) && std::find(out.begin(), out.end(), fitted) == out.end()) out.push_back(fitted);
  }
  return out;
}

std::vector<int64_t> edge_rows(const Contract& contract, std::vector<int64_t> wanted) {
  if (contract.limits.m_max > 0) wanted.push_back(contract.limits.m_max);
  std::sort(wanted.begin(), wanted.end());
  return edge_sizes(std::move(wanted), 1, contract.limits.m_max);
}

std::vector<Numerics> edge_numerics(const Contract& contract) {
  std::vector<Numerics> out{Numerics{}};
  if (contract.round_bf16) out.push_back({.round_bf16 = true, .rope_bf16 = true});
  if (contract.norm_two_roundings) out.push_back({.round_bf16 = true, .norm_two_roundings = true});
  if (contract.index_hadamard) out.push_back({.index_hadamard = true});
  return out;
}

void append(std::vector<std::byte>& out, const void* data, size_t bytes) {
  const std::byte* begin = static_cast<const std::byte*>(data);
  out.insert(out.end(), begin, begin + bytes);
}

Step::Step(std::vector<int32_t> lengths, int rows_each, bool padding, Rng& rng) {
  for (const int32_t length : lengths) stride = std::max(stride, (length + page_tokens - 1) / page_tokens);
  pages = stride * static_cast<int>(lengths.size()) + 3;
  std::vector<int32_t> ids(static_cast<size_t>(pages));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::shuffle(ids.begin(), ids.end(), rng);
  table.assign(ids.begin(), ids.begin() + stride * static_cast<int>(lengths.size()));
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int32_t i = std::max(0, lengths[s] - rows_each); i < lengths[s]; ++i) {
      positions.push_back(i);
      sequence.push_back(static_cast<int32_t>(s));
    }
    if (padding && s == 0) {
      positions.push_back(0);
      sequence.push_back(-1);
    }
  }
}

Paging Step::paging(int64_t first, int64_t count) const {
  return {.rows = static_cast<int>(count),
          .sequences = stride == 0 ? 0 : static_cast<int>(table.size()) / stride,
          .positions = positions.data() + first,
          .sequence = sequence.data() + first,
          .page_table = table.data(),
          .page_table_stride = stride,
          .page_tokens = page_tokens};
}

}  // namespace plumb::testing
