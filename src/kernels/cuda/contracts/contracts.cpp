#include "kernels/cuda/contracts/contracts.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cpu/op_kernels.h"

namespace plumb {
namespace cuda {

const Kernel& portable_sampler() {
  static const Kernel kSampler = [] {
    for (Kernel& kernel : cpu_op_kernels())
      if (kernel.contract.op == Op::Sample && kernel.contract.arch == Isa::Generic) return kernel;
    PLUMB_CHECK(false, "the CPU backend has no portable sampler");
  }();
  return kSampler;
}

namespace {

size_t sampler_workspace(const Call& call) {
  const auto bytes = portable_sampler().contract.workspace;
  return bytes != nullptr ? bytes(call) : 0;
}

constexpr int64_t kPartAlign = 256;  // as device_types.cuh
int64_t aligned(int64_t bytes) { return (bytes + kPartAlign - 1) / kPartAlign * kPartAlign; }

struct Parts {
  int64_t data, scale, total;
};
Parts parts_of(const EncodedMatrix& m) {
  const int64_t data = aligned(encoded_data_bytes(m.format, m.n, m.k));
  const int64_t scale = aligned(encoded_scale_bytes(m.format, m.n, m.k));
  return {data, scale, data + scale + (m.format.global_scale ? kPartAlign : 0)};
}

size_t row_major_bytes(const EncodedMatrix& m) { return static_cast<size_t>(parts_of(m).total); }

void pieces_row_major(const EncodedMatrix& m, const Conversion::Copy& copy) {
  const Parts p = parts_of(m);
  copy(0, m.data, encoded_data_bytes(m.format, m.n, m.k));
  copy(p.data, m.scale, encoded_scale_bytes(m.format, m.n, m.k));
  if (m.format.global_scale) copy(p.data + p.scale, &m.global_scale, sizeof m.global_scale);
}

void fill_row_major(const EncodedMatrix& m, std::byte* out, int part, int parts) {
  pieces_row_major(m, [&](int64_t offset, const void* from, int64_t bytes) {
    const Range range = split(bytes, part, parts);
    if (range.begin < range.end)
      std::memcpy(out + offset + range.begin, static_cast<const std::byte*>(from) + range.begin,
                  static_cast<size_t>(range.end - range.begin));
  });
}

}  // namespace

Contract host_sampler_contract() {
  Contract contract = portable_sampler().contract;
  contract.name = "sample.host.cuda";
  contract.arch = Isa::CudaPortable;
  contract.workspace = sampler_workspace;
  return contract;
}

namespace {

Contract rank_contract(Op op, const char* way) {
  Contract contract{.name = to_string(op) + "." + way + ".cuda", .op = op};
  contract.arch = Isa::CudaPortable;
  contract.reads = {kF32};
  contract.round_bf16 = true;
  contract.norm_two_roundings = true;  // there is nothing to round, or to rotate
  contract.index_hadamard = true;
  contract.deterministic = true;
  contract.batch_invariant = true;
  contract.sum_order = op == Op::AllReduce ? "rank_order" : "copies";
  contract.error_bound = {.c = 1, .unit = DType::F32};
  return contract;
}

Contract peer_contract(Op op, const char* way) {
  Contract contract = rank_contract(op, way);
  contract.limits.ranks_max = kMostPeers;
  // Two of each: what one-shot receives, slices and sums of two-shot, columns; and flags.
  contract.peer_bytes = 2 * (kMostPeers * kOneShotBytes + 3 * kPieceBytes) + (int64_t{1} << 20);
  return contract;
}

}  // namespace

// Preferences between devices: none is measured, for no machine with two was at hand. They follow published figures:
// whole vectors to everyone where latency counts, slices beyond, a library where bandwidth does.
Contract host_collective_contract(Op op) {
  Contract contract = rank_contract(op, "host");
  contract.preference = -1;  // below the others where theirs do not count
  return contract;
}

Contract one_shot_contract() {
  Contract contract = peer_contract(Op::AllReduce, "one_shot");
  contract.limits.message_bytes_max = kOneShotBytes;
  contract.preference = 40;
  return contract;
}

Contract two_shot_contract() {
  Contract contract = peer_contract(Op::AllReduce, "two_shot");
  contract.preference = 20;
  return contract;
}

Contract peer_gather_contract() {
  Contract contract = peer_contract(Op::GatherColumns, "peer");
  contract.limits.k_max = kPieceBytes / 4;
  contract.preference = 20;
  return contract;
}

// Its sums go round a ring: every element is added up once, from a rank that its place in the message decides, and
// copied to the others. So all ranks have the same bits, and a row's depend on how many there are.
Contract nccl_contract(Op op) {
  Contract contract = rank_contract(op, "nccl");
  contract.own_device = true;
  if (op == Op::AllReduce) {
    contract.sum_order = "nccl_ring";
    contract.batch_invariant = false;
    contract.preference = 30;
    contract.preferred_from = 65;
  } else {
    contract.preference = 10;
    contract.workspace = [](const Call& call) {
      return static_cast<size_t>(std::max(kPieceBytes, call.k * call.ranks * 4));
    };
  }
  return contract;
}

}  // namespace cuda

std::vector<Kernel> cuda_contracts() {
  std::vector<Kernel> kernels;
  kernels.reserve(static_cast<size_t>(Op::Sample) + 8);
  // The sampler is the host's, and so is what ranks send each other.
  for (int op = 0; op < static_cast<int>(Op::Sample); ++op)
    kernels.push_back({.contract = cuda::naive_contract(static_cast<Op>(op))});
  kernels.push_back({.contract = cuda::host_sampler_contract()});
  for (const Op op : {Op::AllReduce, Op::GatherColumns}) {
    kernels.push_back({.contract = cuda::host_collective_contract(op)});
    kernels.push_back({.contract = cuda::nccl_contract(op)});
  }
  kernels.push_back({.contract = cuda::one_shot_contract()});
  kernels.push_back({.contract = cuda::two_shot_contract()});
  kernels.push_back({.contract = cuda::peer_gather_contract()});
  return kernels;
}

std::vector<Conversion> cuda_conversions() {
  return {{.to = Layout::CudaRowMajor,
           .formats = {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4},
           .bytes = cuda::row_major_bytes,
           .fill = cuda::fill_row_major,
           .pieces = cuda::pieces_row_major}};
}

}  // namespace plumb
