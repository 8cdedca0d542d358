// Plain index scores and selection (model.md 3.7, 3.8).
#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/naive/naive.h"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 256;

struct Scores {
  Act q, weights;
  int heads, head_dim;
  float weight_scale, softmax_scale;
  float* logits;
  int64_t logits_ld, columns;
};

__global__ void score_columns(Scores p, Paging paging, KvView kv) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t r = blockIdx.y;
  const int32_t sequence = paging.sequence[r];
  if (sequence < 0 || j >= p.columns) return;
  float* out = p.logits + r * p.logits_ld + j;
  if (j > paging.positions[r]) {
    *out = -INFINITY;
    return;
  }
  const auto position = static_cast<int32_t>(j);
  const uint8_t* page = index_page_at(kv, paging, sequence, position);
  const int slot = position % paging.page_tokens;
  double sum = 0;
  for (int h = 0; h < p.heads; ++h) {
    double dot = 0;
    for (int i = 0; i < p.head_dim; ++i)
      dot += static_cast<double>(p.q.load(r, static_cast<int64_t>(h) * p.head_dim + i)) *
             static_cast<double>(read_index_key(kv.geometry, page, slot, i));
    dot *= static_cast<double>(p.softmax_scale);
    sum += static_cast<double>(p.weights.load(r, h)) * static_cast<double>(p.weight_scale) * (dot < 0 ? 0.0 : dot);
  }
  *out = static_cast<float>(sum);
}

// Larger float, larger key; NaN below everything.
__device__ uint32_t sort_key(float value) {
  if (value != value) return 0;
  const uint32_t bits = f32_to_bits(value == 0.0f ? 0.0f : value);  // -0 and +0 are equal scores
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// One block a row: four rounds of 8 bits find the k-th largest key, then positions are taken in ascending order, all
// above it and the first of those equal to it.
__global__ void select_rows(const float* logits, int64_t logits_ld, const int32_t* positions, int topk,
                            int32_t* indices, int64_t indices_ld) {
  __shared__ int histogram[256];
  __shared__ uint32_t prefix_shared;
  __shared__ int left_shared;
  __shared__ int counts[kThreads];
  __shared__ int base_shared[2];
  const int64_t r = blockIdx.x;
  int32_t* out = indices + r * indices_ld;
  const int length = positions[r] + 1;
  const int tid = static_cast<int>(threadIdx.x);
  if (length <= topk) {
    for (int i = tid; i < topk; i += kThreads) out[i] = i < length ? i : -1;
    return;
  }
  const float* row = logits + r * logits_ld;
  uint32_t prefix = 0;
  int left = topk;
  for (int shift = 24; shift >= 0; shift -= 8) {
    histogram[tid] = 0;
    __syncthreads();
    for (int j = tid; j < length; j += kThreads) {
      const uint32_t key = sort_key(row[j]);
      if (shift == 24 || (key >> (shift + 8)) == (prefix >> (shift + 8)))
        atomicAdd(&histogram[(key >> shift) & 255u], 1);
    }
    __syncthreads();
    if (tid == 0) {
      int bin = 255;
      while (histogram[bin] < left) left -= histogram[bin--];
      prefix_shared = prefix | static_cast<uint32_t>(bin) << shift;
      left_shared = left;
    }
    __syncthreads();
    prefix = prefix_shared;
    left = left_shared;
  }
  // `prefix` is the k-th key, `left` how many equal to it are taken.
  if (tid < 2) base_shared[tid] = 0;
  __syncthreads();
  for (int begin = 0; begin < length; begin += kThreads) {
    const int j = begin + tid;
    const uint32_t key = j < length ? sort_key(row[j]) : 0;
    const bool above = j < length && key > prefix;
    const bool equal = j < length && key == prefix;
    counts[tid] = (above ? 1 : 0) | (equal ? 1 << 16 : 0);
    __syncthreads();
    int mine_above = 0, mine_equal = 0, all_above = 0, all_equal = 0;
    for (int i = 0; i < kThreads; ++i) {
      const int a = counts[i] & 0xffff, e = counts[i] >> 16;
      if (i < tid) {
        mine_above += a;
        mine_equal += e;
      }
      all_above += a;
      all_equal += e;
    }
    const int equal_before = base_shared[1] + mine_equal;
    const int at = base_shared[0] + mine_above + min(equal_before, left);
    if (above || (equal && equal_before < left)) out[at] = j;
    __syncthreads();
    if (tid == 0) {
      base_shared[0] += all_above;
      base_shared[1] += all_equal;
    }
    __syncthreads();
  }
}

struct Sets {
  bool extend;
  int32_t* selection;
  int64_t selection_ld, selected;
  int32_t* sets;
  int64_t sets_ld, width;
};

// One block a row. A set that is full stays as it is: a caller that drafts so often has a bug, and no place to hear it.
__global__ void draft_rows(Sets p, Paging paging) {
  __shared__ int end_shared;
  const int row = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x);
  const int32_t sequence = paging.sequence[row];
  int32_t* selected = p.selection + row * p.selection_ld;
  if (sequence < 0) {
    for (int64_t i = tid; p.extend && i < p.width; i += kThreads) selected[i] = -1;
    return;
  }
  int32_t* set = p.sets + sequence * p.sets_ld;
  if (!p.extend) {  // the sequence's last row alone writes
    bool later = false;
    for (int r = row + 1 + tid; r < paging.rows; r += kThreads) later |= paging.sequence[r] == sequence;
    if (__syncthreads_or(later) != 0) return;
    for (int64_t i = tid; i < p.width; i += kThreads) set[i] = i < p.selected ? selected[i] : -1;
    return;
  }
  if (tid == 0) end_shared = static_cast<int>(p.width);
  __syncthreads();
  for (int i = tid; i < p.width; i += kThreads)
    if (set[i] == -1) atomicMin(&end_shared, i);
  __syncthreads();
  const int end = end_shared;
  const int32_t own = paging.positions[row];
  if (tid == 0 && end < p.width && (end == 0 || set[end - 1] != own)) set[end] = own;
  __syncthreads();
  for (int64_t i = tid; i < p.width; i += kThreads) selected[i] = set[i];
}

void draft_set(const DraftSetArgs& a, Stream& s) {
  const Sets p{a.extend, a.selection.i32(), a.selection.ld, a.selection.dim(1), a.sets.i32(), a.sets.ld, a.sets.dim(1)};
  draft_rows<<<static_cast<unsigned>(a.paging.rows), kThreads, 0, handle(s)>>>(p, a.paging);
}
void indexer_logits(const IndexerLogitsArgs& a, Stream& s) {
  const Scores p{act(a.q),        act(a.weights), a.heads,     a.head_dim,     a.weight_scale,
                 a.softmax_scale, a.logits.f32(), a.logits.ld, a.logits.dim(1)};
  const dim3 grid(static_cast<unsigned>((p.columns + kThreads - 1) / kThreads), static_cast<unsigned>(a.paging.rows));
  score_columns<<<grid, kThreads, 0, handle(s)>>>(p, a.paging, a.kv);
}
void top_k(const TopKArgs& a, Stream& s) {
  select_rows<<<static_cast<unsigned>(a.indices.dim(0)), kThreads, 0, handle(s)>>>(
      static_cast<const float*>(a.logits.data), a.logits.ld, a.positions, a.topk, a.indices.i32(), a.indices.ld);
}

}  // namespace

void add_naive_select_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<IndexerLogitsArgs, indexer_logits>(naive_contract(Op::IndexerLogits)));
  out.push_back(make_kernel<TopKArgs, top_k>(naive_contract(Op::TopK)));
  out.push_back(make_kernel<DraftSetArgs, draft_set>(naive_contract(Op::DraftSet)));
}

}  // namespace plumb::cuda
