// The router in f32: a warp an expert over eight rows at a time, then a warp a row that chooses (model.md 3.10).
#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/rows/row_kernels.h"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 8;
constexpr int kMaxExperts = 512;
constexpr int kEach = kMaxExperts / 32;  // experts of a lane: e = 32 i + lane
constexpr int kMaxGroups = 32;

__device__ inline float widened(float x) { return x; }
__device__ inline float widened(uint16_t x) { return bf16_to_f32(x); }
__device__ inline void load_eight(const float* from, float (&to)[8]) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(from)),
               high = __ldg(reinterpret_cast<const float4*>(from) + 1);
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}
__device__ inline void load_eight(const uint16_t* from, float (&to)[8]) {
  const uint4 bits = __ldg(reinterpret_cast<const uint4*>(from));
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    to[2 * i] = bits_to_f32(words[i] << 16), to[2 * i + 1] = bits_to_f32(words[i] & 0xffff0000u);
}

// Every lane adds up eight neighbours of each 256, in ascending order, then the lanes in a fixed tree: no bit depends
// on the other rows.
template <class Element>
__global__ void __launch_bounds__(kThreads) score_experts(Mat gate, Act x, Act logits, int rows) {
  constexpr int kEight = 8;
  const int64_t e = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.y) * kRows, count = min(kRows, rows - first);
  if (e >= gate.n) return;
  const auto* weights = reinterpret_cast<const Element*>(gate.data) + e * gate.k;
  const auto* values = static_cast<const float*>(x.data) + first * x.ld;
  const bool wide = gate.k % kEight == 0 && x.ld % 4 == 0 && reinterpret_cast<uintptr_t>(values) % 16 == 0;
  float sum[kRows] = {};
  for (int64_t at = lane * kEight; at < gate.k; at += 32 * kEight) {
    float w[kEight] = {}, v[kRows][kEight] = {};
    if (wide) {  // all loads before the first is used; rows beyond the last are the last again
      load_eight(weights + at, w);
#pragma unroll
      for (int r = 0; r < kRows; ++r) load_eight(values + min(r, count - 1) * x.ld + at, v[r]);
    } else {
      for (int i = 0; i < kEight && at + i < gate.k; ++i) {
        w[i] = widened(weights[at + i]);
        for (int r = 0; r < kRows; ++r) v[r][i] = values[min(r, count - 1) * x.ld + at + i];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kEight; ++i) sum[r] = fmaf(w[i], v[r][i], sum[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int offset = 16; offset > 0; offset /= 2) sum[r] += __shfl_xor_sync(~0u, sum[r], offset);
    if (lane == 0 && r < count) logits.store(first + r, e, static_cast<double>(sum[r]), false);
  }
}

struct Choosing {
  const float* bias;
  const int32_t* sequence;
  int experts, k, n_group, topk_group;
  bool norm;
  float scaling;
};

// NaN counts as -inf, so that a poisoned row still chooses experts that exist.
__device__ float comparable(float x) { return x == x ? x : -INFINITY; }

// The largest of all lanes, ties to the lower id; `id` INT32_MAX where a lane has none.
__device__ void best_of_warp(float& score, int& id) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(~0u, score, offset);
    const int other_id = __shfl_xor_sync(~0u, id, offset);
    const bool take = other_id != INT32_MAX && (id == INT32_MAX || other > score || (other == score && other_id < id));
    if (take) score = other, id = other_id;
  }
}

// One warp: the scores of all but the best groups become -inf; a group's score is the sum of its two largest.
__device__ void limit_groups(const Choosing& c, float* score) {
  const int lane = static_cast<int>(threadIdx.x) % 32, size = c.experts / c.n_group;
  float group = -INFINITY;
  if (lane < c.n_group) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = lane * size; e < (lane + 1) * size; ++e) {
      if (score[e] > first)
        second = first, first = score[e];
      else if (score[e] > second)
        second = score[e];
    }
    group = comparable(size > 1 ? first + second : first);
  }
  unsigned kept = 0;
  for (int i = 0; i < c.topk_group; ++i) {
    float best = group;
    int id = lane < c.n_group && (kept >> lane & 1u) == 0 ? lane : INT32_MAX;
    best_of_warp(best, id);
    if (id != INT32_MAX) kept |= 1u << id;
  }
  for (int e = lane; e < c.experts; e += 32)
    if ((kept >> (e / size) & 1u) == 0) score[e] = -INFINITY;
  __syncwarp();
}

__global__ void __launch_bounds__(32)
    choose_experts(Act logits, Choosing c, int32_t* experts, int64_t experts_ld, float* weights, int64_t weights_ld) {
  __shared__ float score[kMaxExperts];
  const int64_t t = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  if (c.sequence != nullptr && c.sequence[t] < 0) {
    for (int j = lane; j < c.k; j += 32) experts[t * experts_ld + j] = -1;
    return;
  }
  const auto sigmoid = [&](int e) {
    return static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(logits.load(t, e)))));
  };
  for (int e = lane; e < c.experts; e += 32) score[e] = comparable(sigmoid(e) + (c.bias != nullptr ? c.bias[e] : 0.0f));
  __syncwarp();
  if (c.n_group > 1) limit_groups(c, score);
  uint32_t taken = 0;  // bit i: expert 32 i + lane
  double sum = 0;
  for (int j = 0; j < c.k; ++j) {
    float best = 0;
    int id = INT32_MAX;
    for (int i = 0; i < kEach && 32 * i + lane < c.experts; ++i) {
      const float here = score[32 * i + lane];
      if ((taken >> i & 1u) == 0 && (id == INT32_MAX || here > best)) best = here, id = 32 * i + lane;
    }
    best_of_warp(best, id);
    if (id % 32 == lane) taken |= 1u << (id / 32);
    if (lane == 0) experts[t * experts_ld + j] = id;
    sum += static_cast<double>(sigmoid(id));
  }
  __syncwarp();
  const double norm = c.norm ? sum + 1e-20 : 1.0;
  for (int j = lane; j < c.k; j += 32)
    weights[t * weights_ld + j] = static_cast<float>(static_cast<double>(sigmoid(experts[t * experts_ld + j])) / norm *
                                                     static_cast<double>(c.scaling));
}

void router(const RouterArgs& a, Stream& s) {
  const auto rows = static_cast<unsigned>(a.x.dim(0));
  const auto experts = static_cast<int>(a.gate->n());
  PLUMB_CHECK(a.n_group <= kMaxGroups, "more groups of experts than a warp has lanes");
  PLUMB_CHECK(a.x.dtype == DType::F32, "the router reads f32");
  const dim3 grid(static_cast<unsigned>((experts + kThreads / 32 - 1) / (kThreads / 32)), (rows + kRows - 1) / kRows);
  const auto score = a.gate->format().element == DType::F32 ? score_experts<float> : score_experts<uint16_t>;
  score<<<grid, kThreads, 0, handle(s)>>>(mat(*a.gate), act(a.x), act(a.logits), static_cast<int>(rows));
  const Choosing c{a.bias,    a.sequence,   experts,          static_cast<int>(a.experts.dim(1)),
                   a.n_group, a.topk_group, a.norm_topk_prob, a.routed_scaling_factor};
  choose_experts<<<rows, 32, 0, handle(s)>>>(act(a.logits), c, a.experts.i32(), a.experts.ld, a.weights.f32(),
                                             a.weights.ld);
}

}  // namespace

void add_router_kernels(std::vector<Kernel>& out) {
  Contract c = row_contract(Op::Router, "warp");
  c.weight = {kF32, kBf16};
  c.limits.n_max = kMaxExperts;
  out.push_back(make_kernel<RouterArgs, router>(std::move(c)));
}

}  // namespace plumb::cuda
