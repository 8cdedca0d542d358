// Index scores and their selection (model.md 3.7, 3.8).
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/reference/common.h"

namespace plumb::reference {
namespace {

void score_row(const IndexerLogitsArgs& args, int64_t r, std::vector<Strip>& heads) {
  const int64_t columns = args.logits.dim(1);
  const int32_t sequence = args.paging.sequence[r];
  const int64_t length = std::min<int64_t>(int64_t{args.paging.positions[r]} + 1, columns);
  float* logits = args.logits.row_f32(r);
  const float* weights = args.weights.row_f32(r);
  for (size_t s = 0; s < heads.size(); ++s) {
    const int64_t first = static_cast<int64_t>(s) * kStrip;
    heads[s].load(args.q.row_f32(r) + first * args.head_dim, args.heads - first, args.head_dim);
  }
  std::vector<float> key(static_cast<size_t>(args.head_dim));
  for (int64_t j = 0; j < length; ++j) {
    const int32_t position = static_cast<int32_t>(j);
    read_index_key(args.kv.geometry, index_page(args.kv, args.paging, sequence, position),
                   position % args.paging.page_tokens, key.data());
    double sum = 0;
    for (size_t s = 0; s < heads.size(); ++s) {
      double product[kStrip];
      heads[s].dot(key.data(), product);
      const int first = static_cast<int>(s) * kStrip;
      for (int h = first; h < std::min(first + kStrip, args.heads); ++h) {
        const double scaled = product[h - first] * static_cast<double>(args.softmax_scale);
        const double positive = scaled < 0 ? 0.0 : scaled;  // written so that NaN passes
        sum += static_cast<double>(weights[h]) * static_cast<double>(args.weight_scale) * positive;
      }
    }
    logits[j] = static_cast<float>(sum);
  }
  std::fill(logits + std::max<int64_t>(length, 0), logits + columns, kMinusInf);
}

void indexer_logits(const IndexerLogitsArgs& args, Stream& stream) {
  for_ranges(stream, args.paging.rows, [&](int64_t begin, int64_t end) {
    std::vector<Strip> heads(static_cast<size_t>(strips(args.heads)), Strip(args.head_dim));
    for (int64_t r = begin; r < end; ++r) {
      if (args.paging.sequence[r] >= 0) score_row(args, r, heads);
    }
  });
}

// NaN counts as -inf: a NaN score is a fault that is found where the scores are watched, not here.
void top_k_row(const TopKArgs& args, int64_t r) {
  int32_t* indices = args.indices.row_i32(r);
  std::fill_n(indices, args.topk, -1);
  const int64_t length = int64_t{args.positions[r]} + 1;
  if (length <= 0) return;
  if (length <= args.topk) {
    for (int64_t j = 0; j < length; ++j) indices[j] = static_cast<int32_t>(j);
    return;
  }
  PLUMB_CHECK(args.logits.data != nullptr && length <= args.logits.dim(1), "a row has more positions than scores");
  const float* logits = args.logits.row_f32(r);
  std::vector<int32_t> order(static_cast<size_t>(length));
  for (int64_t j = 0; j < length; ++j) order[static_cast<size_t>(j)] = static_cast<int32_t>(j);
  const auto score = [&](int32_t j) { return std::isnan(logits[j]) ? kMinusInf : logits[j]; };
  std::nth_element(order.begin(), order.begin() + args.topk, order.end(),
                   [&](int32_t a, int32_t b) { return score(a) != score(b) ? score(a) > score(b) : a < b; });
  std::sort(order.begin(), order.begin() + args.topk);
  std::copy_n(order.begin(), args.topk, indices);
}

void top_k(const TopKArgs& args, Stream& stream) {
  for_ranges(stream, args.indices.dim(0), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) top_k_row(args, r);
  });
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

void add_indexer_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<IndexerLogitsArgs, indexer_logits>(reference_contract(Op::IndexerLogits)));
  out.push_back(make_kernel<TopKArgs, top_k>(reference_contract(Op::TopK)));
  out.push_back(make_kernel<DraftSetArgs, draft_set>(reference_contract(Op::DraftSet)));
}

}  // namespace plumb::reference
