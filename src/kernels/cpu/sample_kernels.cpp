// Sample for the instruction sets of sample.h.
#include "base/check.h"
#include "kernels/cpu/op_kernels.h"
#include "kernels/cpu/sample.h"

namespace plumb::cpu {
namespace {

template <const SampleTier& tier>
void sample_rows(const SampleArgs& args, Stream& stream) {
  PLUMB_CHECK(args.vocab <= kSampleMaxVocab, "a vocabulary larger than the kernel's contract allows");
  for_each_row(stream, static_cast<int64_t>(args.rows.size()), [&](int64_t r) {
    const size_t i = static_cast<size_t>(r);
    tier.sample({.row = args.rows[i], .logits = args.logits.row_f32(r), .vocab = args.vocab}, args.out[i]);
  });
}

template <const SampleTier& tier>
Kernel sample_kernel(Isa isa, int preference) {
  Contract contract = op_contract(Op::Sample, "histogram", isa);
  contract.limits.k_max = kSampleMaxVocab;
  contract.preference = preference;
  return make_kernel<SampleArgs, sample_rows<tier>>(std::move(contract));
}

}  // namespace

void add_sample_kernels(std::vector<Kernel>& out) {
  out.push_back(sample_kernel<kSampleGeneric>(Isa::Generic, 10));
#if defined(__x86_64__)
  out.push_back(sample_kernel<kSampleAvx512>(Isa::Avx512, 30));
#endif
}

}  // namespace plumb::cpu
