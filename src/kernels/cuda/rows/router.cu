// The router in f32: blocks of experts by rows whose warps share k, then a block a row that chooses (model.md 3.10).
#include "kernels/cuda/rows/row_kernels.h"
#include "kernels/cuda/rows/split_product.cuh"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxExperts = 512;
constexpr int kEach = kMaxExperts / 32;  // experts of a lane: e = 32 i + lane
constexpr int kMaxGroups = 32;

template <class Element, int kExperts, int kRows>
__global__ void __launch_bounds__(kSplitThreads) score_experts(Mat gate, Act x, Act logits, int rows) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kExperts;
  const int first = static_cast<int>(blockIdx.y) * kRows;
  multiply_split<Element, kExperts, kRows>(gate, e, static_cast<const float*>(x.data) + first * x.ld, x.ld,
                                           min(kRows, rows - first), [&](int64_t expert, int row, float total) {
                                             logits.store(first + row, expert, static_cast<double>(total), false);
                                           });
}

template <class Element, int kExperts, int kRows>
void score(const RouterArgs& a, int64_t rows, Stream& s) {
  const dim3 grid(static_cast<unsigned>((a.gate->n() + kExperts - 1) / kExperts),
                  static_cast<unsigned>((rows + kRows - 1) / kRows));
  score_experts<Element, kExperts, kRows>
      <<<grid, kSplitThreads, 0, handle(s)>>>(mat(*a.gate), act(a.x), act(a.logits), static_cast<int>(rows));
}
// Few rows: the weights' bytes count, so many blocks; many: the rows', so each is read for many experts.
template <class Element, int kMostExperts>
void score(const RouterArgs& a, Stream& s) {
  const int64_t rows = a.x.dim(0);
  if (rows == 1) return score<Element, 2, 1>(a, rows, s);
  if (rows <= 16) return score<Element, 2, 8>(a, rows, s);
  score<Element, kMostExperts, 8>(a, rows, s);
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

// All threads score, the first warp chooses.
__global__ void __launch_bounds__(kThreads)
    choose_experts(Act logits, Choosing c, int32_t* experts, int64_t experts_ld, float* weights, int64_t weights_ld) {
  __shared__ float score[kMaxExperts], chance[kMaxExperts];
  const int64_t t = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  if (c.sequence != nullptr && c.sequence[t] < 0) {
    for (int j = thread; j < c.k; j += kThreads) experts[t * experts_ld + j] = -1;
    return;
  }
  for (int e = thread; e < c.experts; e += kThreads) {
    chance[e] = static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(logits.load(t, e)))));
    score[e] = comparable(chance[e] + (c.bias != nullptr ? c.bias[e] : 0.0f));
  }
  __syncthreads();
  if (thread >= 32) return;
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
    sum += static_cast<double>(chance[id]);
  }
  __syncwarp();
  const double norm = c.norm ? sum + 1e-20 : 1.0;
  for (int j = lane; j < c.k; j += 32)
    weights[t * weights_ld + j] = static_cast<float>(static_cast<double>(chance[experts[t * experts_ld + j]]) / norm *
                                                     static_cast<double>(c.scaling));
}

void router(const RouterArgs& a, Stream& s) {
  const auto rows = static_cast<unsigned>(a.x.dim(0));
  const auto experts = static_cast<int>(a.gate->n());
  PLUMB_CHECK(a.n_group <= kMaxGroups, "more groups of experts than a warp has lanes");
  PLUMB_CHECK(a.x.dtype == DType::F32, "the router reads f32");
  if (a.gate->format().element == DType::F32)
    score<float, 4>(a, s);
  else
    score<uint16_t, 8>(a, s);
  const Choosing c{a.bias,    a.sequence,   experts,          static_cast<int>(a.experts.dim(1)),
                   a.n_group, a.topk_group, a.norm_topk_prob, a.routed_scaling_factor};
  choose_experts<<<rows, kThreads, 0, handle(s)>>>(act(a.logits), c, a.experts.i32(), a.experts.ld, a.weights.f32(),
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
