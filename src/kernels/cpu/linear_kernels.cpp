#include <cstring>
#include <string>

#include "base/check.h"
#include "kernels/cpu/product.h"
#include "tensor/encode.h"

namespace plumb::cpu {
namespace {

size_t linear_workspace(const Call& call) { return static_cast<size_t>(call.m_hi * ceil_div(call.k, 4) * 16); }

void store(const LinearArgs& args, const GroupResult& result) {
  for (int r = 0; r < result.rows; ++r) {
    const float* from = result.values + r * result.ld;
    float* y = args.y.row_f32(result.row0 + r) + result.n0;
    if (args.w->bias == nullptr && !args.numerics.round_bf16) {
      std::memcpy(y, from, static_cast<size_t>(result.outputs) * sizeof(float));
      continue;
    }
    for (int i = 0; i < result.outputs; ++i) {
      const float sum = args.w->bias != nullptr ? from[i] + args.w->bias[result.n0 + i] : from[i];
      y[i] = args.numerics.round_bf16 ? round_bf16(sum) : sum;
    }
  }
}

void linear(const Tier& tier, const LinearArgs& args, Stream& stream) {
  const StripMatrix w = strip_matrix(*args.w);
  const Rows rows{.x = args.x.f32(), .ld = args.x.ld, .count = static_cast<int>(args.x.dim(0)), .k = args.x.dim(1)};
  PLUMB_CHECK(rows.k == w.k && args.y.dim(1) == w.n, "shapes of a linear");
  const bool own = packed_bytes(tier, rows) <= kOwnPackBytes;
  if (!own) {
    PLUMB_CHECK(static_cast<size_t>(packed_bytes(tier, rows)) <= stream.workspace_bytes, "workspace of a linear");
    on_workers(stream, [&](int worker, int workers) {
      const Range part = split(tiles(rows.count), worker, workers);
      pack_tiles(tier, rows, static_cast<int>(part.begin), static_cast<int>(part.end), stream.workspace);
    });
  }
  on_workers(stream, [&](int worker, int workers) {
    alignas(64) std::byte mine[kOwnPackBytes];
    const Range range = split_strips(w.strips, tier.group_strips(w.coding, rows.count), worker, workers);
    if (range.begin >= range.end) return;
    if (own) pack_tiles(tier, rows, 0, tiles(rows.count), mine);
    product(tier, w, range, own ? mine : stream.workspace, rows.count,
            [&](const GroupResult& result) { store(args, result); });
  });
}

template <const Tier& tier>
void linear_on(const LinearArgs& args, Stream& stream) {
  linear(tier, args, stream);
}

template <const Tier& tier>
void add_linear(std::vector<Kernel>& out, Isa isa) {
  for (const Family& family : families(isa)) {
    Contract contract = strip_contract(Op::Linear, family, isa);
    contract.name = std::string("linear.") + family.name + ".strip16." + to_string(isa);
    contract.workspace = linear_workspace;
    out.push_back(make_kernel<LinearArgs, linear_on<tier>>(std::move(contract)));
  }
}

}  // namespace

std::vector<Kernel> linear_kernels() {
  std::vector<Kernel> kernels;
  add_linear<kTierGeneric>(kernels, Isa::Generic);
#if defined(__x86_64__)
  add_linear<kTierAvx2>(kernels, Isa::Avx2);
  add_linear<kTierAvx512>(kernels, Isa::Avx512);
  add_linear<kTierAvx512Bf16>(kernels, Isa::Avx512Bf16);
#endif
  return kernels;
}

}  // namespace plumb::cpu
