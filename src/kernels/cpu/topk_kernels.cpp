// TopK by radix selection: the k-th largest score in three histograms of its bits, then one walk in order of positions,
// which gives ascending indices and ties to the lower position for free.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/check.h"
#include "kernels/cpu/op_kernels.h"

namespace plumb::cpu {
namespace {

// Keys that order as the scores do: -0 equals 0, NaN counts as -inf.
uint32_t score_key(float score) {
  if (score != score) return 0x007fffffu;  // -inf's
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Digit {
  int shift = 0;
  int bits = 0;
};
constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};

struct Threshold {
  uint32_t key = 0;   // of the k-th largest
  int64_t equal = 0;  // how many of that key are among the k
};

Threshold find_threshold(const float* scores, int64_t length, int64_t k) {
  uint32_t prefix = 0;
  uint32_t mask = 0;
  int64_t wanted = k;
  for (const Digit& digit : kDigits) {
    std::array<int32_t, 2048> count{};
    const uint32_t low = (1u << digit.bits) - 1;
    for (int64_t j = 0; j < length; ++j) {
      const uint32_t key = score_key(scores[j]);
      if ((key & mask) == prefix) ++count[(key >> digit.shift) & low];
    }
    uint32_t value = low;
    while (count[value] < wanted) wanted -= count[value--];
    prefix |= value << digit.shift;
    mask |= low << digit.shift;
  }
  return {.key = prefix, .equal = wanted};
}

void top_k_row(const TopKArgs& args, int64_t r) {
  int32_t* indices = args.indices.row_i32(r);
  const int64_t length = int64_t{args.positions[r]} + 1;
  if (length <= args.topk) {
    const int64_t all = std::max<int64_t>(length, 0);
    for (int64_t j = 0; j < all; ++j) indices[j] = static_cast<int32_t>(j);
    std::fill(indices + all, indices + args.topk, -1);
    return;
  }
  PLUMB_CHECK(args.logits.data != nullptr && length <= args.logits.dim(1), "a row has more positions than scores");
  const float* scores = args.logits.row_f32(r);
  Threshold threshold = find_threshold(scores, length, args.topk);
  int64_t taken = 0;
  for (int64_t j = 0; taken < args.topk; ++j) {
    const uint32_t key = score_key(scores[j]);
    if (key < threshold.key || (key == threshold.key && threshold.equal-- <= 0)) continue;
    indices[taken++] = static_cast<int32_t>(j);
  }
}

void top_k(const TopKArgs& args, Stream& stream) {
  for_each_row(stream, args.indices.dim(0), [&](int64_t r) { top_k_row(args, r); });
}

void draft_set(const DraftSetArgs& args, Stream&) {
  const int64_t width = args.sets.dim(1);
  for (int row = 0; row < args.paging.rows; ++row) {
    const int32_t sequence = args.paging.sequence[row];
    int32_t* selected = args.selection.row_i32(row);
    if (sequence < 0) {
      if (args.extend) std::fill_n(selected, width, -1);
      continue;
    }
    PLUMB_CHECK(sequence < args.sets.dim(0), "more sequences than there are sets");
    int32_t* set = args.sets.row_i32(sequence);
    if (!args.extend) {  // rows of a sequence ascend, so the last one's stays
      std::fill(std::copy_n(selected, args.selection.dim(1), set), set + width, -1);
      continue;
    }
    int32_t* end = std::find(set, set + width, -1);
    PLUMB_CHECK(end != set + width, "an index set was reused for more drafts than it has room for");
    if (end == set || end[-1] != args.paging.positions[row]) *end = args.paging.positions[row];
    std::copy_n(set, width, selected);
  }
}

}  // namespace

void add_topk_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<TopKArgs, top_k>(op_contract(Op::TopK, "radix", Isa::Generic)));
  out.push_back(make_kernel<DraftSetArgs, draft_set>(op_contract(Op::DraftSet, "rows", Isa::Generic)));
}

}  // namespace plumb::cpu
