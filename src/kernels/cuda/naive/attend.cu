// Plain sparse MLA in absorbed form: one block a row and head, float64 throughout (model.md 3.6).
#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/naive/naive.h"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 256;

struct Attend {
  Act q;
  Mat kv_b;
  int nope, rope, v;
  float softmax_scale;
  const int32_t* topk;
  int64_t topk_ld;
  int topk_count;
  Act out;
  bool round;
};

__device__ double block_max(double value, double* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) value = fmax(value, __shfl_xor_sync(0xffffffffu, value, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) value = fmax(value, scratch[w]);
  return value;
}

// Shared: q_lat[rank], o_lat[rank], score[topk] as double. An index that is -1 or not yet written is skipped, never
// read.
__global__ void attend_rows(Attend a, Paging paging, KvView kv) {
  extern __shared__ double memory[];
  __shared__ double scratch[32];
  const int64_t t = blockIdx.x;
  const int h = static_cast<int>(blockIdx.y);
  const int32_t sequence = paging.sequence[t];
  if (sequence < 0) return;
  const int rank = kv.geometry.kv_lora_rank;
  double* q_lat = memory;
  double* o_lat = memory + rank;
  double* score = memory + 2 * rank;
  const int64_t q_base = static_cast<int64_t>(h) * (a.nope + a.rope);
  const int64_t w_base = static_cast<int64_t>(h) * (a.nope + a.v);
  for (int c = static_cast<int>(threadIdx.x); c < rank; c += kThreads) {
    double sum = 0;
    for (int n = 0; n < a.nope; ++n)
      sum += static_cast<double>(a.kv_b.at(w_base + n, c)) * static_cast<double>(a.q.load(t, q_base + n));
    q_lat[c] = sum;
  }
  __syncthreads();
  const int32_t* selected = a.topk + t * a.topk_ld;
  const auto valid = [&](int i) { return selected[i] >= 0 && selected[i] <= paging.positions[t]; };
  double largest = -INFINITY;
  for (int i = static_cast<int>(threadIdx.x); i < a.topk_count; i += kThreads) {
    double s = -INFINITY;
    if (valid(i)) {
      const uint8_t* row = latent_row_at(kv, paging, sequence, selected[i]);
      s = 0;
      for (int c = 0; c < rank; ++c) s += q_lat[c] * static_cast<double>(read_latent(kv.geometry, row, c));
      for (int r = 0; r < a.rope; ++r)
        s += static_cast<double>(a.q.load(t, q_base + a.nope + r)) *
             static_cast<double>(read_latent(kv.geometry, row, rank + r));
      s *= static_cast<double>(a.softmax_scale);
    }
    score[i] = s;
    largest = fmax(largest, s);
  }
  largest = block_max(largest, scratch);
  double total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.topk_count; i += kThreads) {
    const double p = valid(i) ? exp(score[i] - largest) : 0.0;
    score[i] = p;
    total += p;
  }
  total = block_sum(total, scratch);
  bool any = false;
  for (int i = 0; i < a.topk_count && !any; ++i) any = valid(i);
  for (int c = static_cast<int>(threadIdx.x); c < rank; c += kThreads) {
    double sum = 0;
    for (int i = 0; i < a.topk_count; ++i)
      if (valid(i))
        sum += score[i] *
               static_cast<double>(read_latent(kv.geometry, latent_row_at(kv, paging, sequence, selected[i]), c));
    o_lat[c] = any ? sum / total : 0.0;
  }
  __syncthreads();
  for (int v = static_cast<int>(threadIdx.x); v < a.v; v += kThreads) {
    double sum = 0;
    for (int c = 0; c < rank; ++c) sum += static_cast<double>(a.kv_b.at(w_base + a.nope + v, c)) * o_lat[c];
    a.out.store(t, static_cast<int64_t>(h) * a.v + v, sum, a.round);
  }
}

void mla_attend(const MlaAttendArgs& a, Stream& s) {
  const auto topk = static_cast<int>(a.topk_indices.dim(1));
  const Attend p{act(a.q), mat(*a.kv_b),    a.nope_dim,           a.rope_dim,
                 a.v_dim,  a.softmax_scale, a.topk_indices.i32(), a.topk_indices.ld,
                 topk,     act(a.out),      a.numerics.round_bf16};
  const auto bytes = static_cast<size_t>(2 * a.kv.geometry.kv_lora_rank + topk) * sizeof(double);
  if (bytes > 48 * 1024)
    cudaFuncSetAttribute(attend_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  const dim3 grid(static_cast<unsigned>(a.paging.rows), static_cast<unsigned>(a.heads));
  attend_rows<<<grid, kThreads, bytes, handle(s)>>>(p, a.paging, a.kv);
}

}  // namespace

void add_naive_attend_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<MlaAttendArgs, mla_attend>(naive_contract(Op::MlaAttend)));
}

}  // namespace plumb::cuda
