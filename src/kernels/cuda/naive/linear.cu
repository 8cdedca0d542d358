// Plain kernels of linears, MLP, router and experts. One output a thread; the sum runs along k in order, in float64.
#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/naive/naive.h"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 128;

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

__device__ double dot(const Mat& w, int64_t row, const Act& x, int64_t t) {
  double sum = 0;
  for (int64_t k = 0; k < w.k; ++k) sum += static_cast<double>(w.at(row, k)) * static_cast<double>(x.load(t, k));
  return sum;
}

__global__ void linear_out(Mat w, const float* bias, Act x, Act y, bool round) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t t = blockIdx.y;
  if (n >= w.n) return;
  y.store(t, n, dot(w, n, x, t) + (bias != nullptr ? static_cast<double>(bias[n]) : 0.0), round);
}

__device__ float rounded(double value, bool round) {
  const float f = static_cast<float>(value);
  return round ? round_bf16(f) : f;
}

// silu(gate) * up of one row, as the reference rounds it
__device__ float gated(double gate, double up, bool round) {
  const double g = rounded(gate, round);
  const double u = rounded(up, round);
  return rounded(static_cast<double>(rounded(g / (1.0 + exp(-g)), round)) * u, round);
}

// The choices of every row: `slots` of them.
struct Chosen {
  const int32_t* experts = nullptr;
  int64_t ld = 0;
  Held held{};
  int slots = 1;
  __device__ int32_t index(int64_t t, int64_t j) const { return held.index(experts[t * ld + j]); }
};

// hidden[slot, i] of slot = t * k + j, for row t's choice j; experts null: one MLP for every row
__global__ void gate_up(Stack gate, Stack up, Act x, Chosen c, float* hidden, bool round) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t slot = blockIdx.y;
  if (i >= gate.first.n) return;
  const int64_t t = slot / c.slots;
  const int32_t e = c.experts == nullptr ? 0 : c.index(t, slot % c.slots);
  float value = 0;
  if (e >= 0) value = gated(dot(gate[e], i, x, t), dot(up[e], i, x, t), round);
  hidden[slot * gate.first.n + i] = value;
}

__device__ double down_dot(const Mat& w, int64_t row, const float* hidden) {
  double sum = 0;
  for (int64_t k = 0; k < w.k; ++k) sum += static_cast<double>(w.at(row, k)) * static_cast<double>(hidden[k]);
  return sum;
}

__global__ void mlp_down(Stack down, const float* hidden, Act y, bool round) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t t = blockIdx.y;
  if (i >= down.first.n) return;
  y.store(t, i, down_dot(down.first, i, hidden + t * down.first.k), round);
}

// Slots in order; the weighted sum is rounded before the shared expert is added where rounding is asked for.
__global__ void moe_down(Stack down, const float* hidden, Chosen c, const float* weights, int64_t weights_ld,
                         Act shared, Act y, bool round) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t t = blockIdx.y;
  if (i >= down.first.n) return;
  double sum = 0;
  for (int j = 0; j < c.slots; ++j) {
    const int32_t e = c.index(t, j);
    if (e < 0) continue;
    const double out = down_dot(down[e], i, hidden + (t * c.slots + j) * down.first.k);
    sum += static_cast<double>(weights[t * weights_ld + j]) * (round ? static_cast<double>(rounded(out, true)) : out);
  }
  if (round) sum = rounded(sum, true);
  if (shared.data != nullptr) sum += static_cast<double>(shared.load(t, i));
  y.store(t, i, sum, round);
}

struct RouterParams {
  const float* bias;
  int experts, k, n_group, topk_group;
  bool norm;
  float scaling;
};

// -inf for NaN, so that a poisoned row still chooses experts that exist.
__device__ float comparable(float x) { return x == x ? x : -INFINITY; }

// One thread a row: at most a few hundred experts. Ties to the lower id. `used` are the groups or experts taken.
__global__ void choose_experts(const float* logits, int64_t logits_ld, RouterParams p, int32_t* experts,
                               int64_t experts_ld, float* weights, int64_t weights_ld, int rows,
                               const int32_t* sequence, float* scratch) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t >= rows) return;
  if (sequence != nullptr && sequence[t] < 0) {
    for (int j = 0; j < p.k; ++j) experts[t * experts_ld + j] = -1;
    return;
  }
  float* score = scratch + static_cast<int64_t>(t) * p.experts;
  const float* row = logits + t * logits_ld;
  const auto sigmoid = [&](int e) { return static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(row[e])))); };
  for (int e = 0; e < p.experts; ++e) score[e] = comparable(sigmoid(e) + (p.bias != nullptr ? p.bias[e] : 0.0f));
  if (p.n_group > 1) {
    const int size = p.experts / p.n_group;
    uint64_t kept = 0;
    for (int round = 0; round < p.topk_group; ++round) {
      int best = -1;
      float best_score = 0;
      for (int g = 0; g < p.n_group; ++g) {
        if ((kept >> g) & 1u) continue;
        float first = -INFINITY, second = -INFINITY;
        for (int e = g * size; e < (g + 1) * size; ++e) {
          if (score[e] > first) {
            second = first;
            first = score[e];
          } else if (score[e] > second)
            second = score[e];
        }
        const float group = comparable(size > 1 ? first + second : first);
        if (best < 0 || group > best_score) {
          best = g;
          best_score = group;
        }
      }
      kept |= uint64_t{1} << best;
    }
    for (int e = 0; e < p.experts; ++e)
      if (!((kept >> (e / size)) & 1u)) score[e] = -INFINITY;
  }
  double sum = 0;
  for (int j = 0; j < p.k; ++j) {
    int best = -1;
    for (int e = 0; e < p.experts; ++e) {
      bool taken = false;
      for (int q = 0; q < j; ++q) taken |= experts[t * experts_ld + q] == e;
      if (!taken && (best < 0 || score[e] > score[best])) best = e;
    }
    experts[t * experts_ld + j] = best;
    sum += static_cast<double>(sigmoid(best));
  }
  const double norm = p.norm ? sum + 1e-20 : 1.0;
  for (int j = 0; j < p.k; ++j)
    weights[t * weights_ld + j] = static_cast<float>(static_cast<double>(sigmoid(experts[t * experts_ld + j])) / norm *
                                                     static_cast<double>(p.scaling));
}

void linear(const LinearArgs& a, Stream& s) {
  const dim3 grid(blocks(a.w->n()), static_cast<unsigned>(a.x.dim(0)));
  linear_out<<<grid, kThreads, 0, handle(s)>>>(mat(*a.w), a.w->bias, act(a.x), act(a.y), a.numerics.round_bf16);
}

void mlp(const MlpArgs& a, Stream& s) {
  const auto rows = static_cast<unsigned>(a.x.dim(0));
  auto* hidden = reinterpret_cast<float*>(s.workspace);
  PLUMB_CHECK(s.workspace_bytes >= size_t{rows} * static_cast<size_t>(a.gate->n()) * 4, "workspace too small");
  gate_up<<<dim3(blocks(a.gate->n()), rows), kThreads, 0, handle(s)>>>(Stack{mat(*a.gate)}, Stack{mat(*a.up)}, act(a.x),
                                                                       Chosen{}, hidden, a.numerics.round_bf16);
  mlp_down<<<dim3(blocks(a.down->n()), rows), kThreads, 0, handle(s)>>>(Stack{mat(*a.down)}, hidden, act(a.y),
                                                                        a.numerics.round_bf16);
}

void moe(const MoeArgs& a, Stream& s) {
  const auto rows = static_cast<unsigned>(a.x.dim(0));
  const int slots = static_cast<int>(a.experts.dim(1));
  const Chosen chosen{a.experts.i32(), a.experts.ld, held(a), slots};
  auto* hidden = reinterpret_cast<float*>(s.workspace);
  PLUMB_CHECK(s.workspace_bytes >= size_t{rows} * static_cast<size_t>(slots * a.gate[0].n()) * 4,
              "workspace too small");
  gate_up<<<dim3(blocks(a.gate[0].n()), rows * static_cast<unsigned>(slots)), kThreads, 0, handle(s)>>>(
      stack(a.gate), stack(a.up), act(a.x), chosen, hidden, a.numerics.round_bf16);
  moe_down<<<dim3(blocks(a.down[0].n()), rows), kThreads, 0, handle(s)>>>(
      stack(a.down), hidden, chosen, a.weights.f32(), a.weights.ld, act(a.shared), act(a.y), a.numerics.round_bf16);
}

void router(const RouterArgs& a, Stream& s) {
  const auto rows = static_cast<unsigned>(a.x.dim(0));
  const auto experts = static_cast<int>(a.gate->n());
  PLUMB_CHECK(s.workspace_bytes >= size_t{rows} * static_cast<size_t>(experts) * 4, "workspace too small");
  linear_out<<<dim3(blocks(experts), rows), kThreads, 0, handle(s)>>>(mat(*a.gate), nullptr, act(a.x), act(a.logits),
                                                                      false);
  const RouterParams p{a.bias,
                       experts,
                       static_cast<int>(a.experts.dim(1)),
                       a.n_group,
                       a.topk_group,
                       a.norm_topk_prob,
                       a.routed_scaling_factor};
  choose_experts<<<(rows + 63) / 64, 64, 0, handle(s)>>>(a.logits.f32(), a.logits.ld, p, a.experts.i32(), a.experts.ld,
                                                         a.weights.f32(), a.weights.ld, static_cast<int>(rows),
                                                         a.sequence, reinterpret_cast<float*>(s.workspace));
}

}  // namespace

void add_naive_linear_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<LinearArgs, linear>(naive_contract(Op::Linear)));
  out.push_back(make_kernel<MlpArgs, mlp>(naive_contract(Op::Mlp)));
  out.push_back(make_kernel<MoeArgs, moe>(naive_contract(Op::Moe)));
  out.push_back(make_kernel<RouterArgs, router>(naive_contract(Op::Router)));
}

}  // namespace plumb::cuda
