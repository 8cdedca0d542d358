#include "kernels/cuda/mma/mma_kernels.h"
#include "kernels/cuda/mma/product.cuh"
#include "kernels/cuda/mma/tile.cuh"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 32 * kWarps;
constexpr int kSplitThreads = 1024;

__global__ void split_activations(Act x, Columns out) {
  split_row(out, blockIdx.x, [&](int64_t i) { return x.load(blockIdx.x, i); });
}

__device__ float rounded(float value, bool round) { return round ? round_bf16(value) : value; }

// silu(gate) * up
__global__ void split_gated(const float* gate, const float* up, bool round, Columns out) {
  const float* g_row = gate + blockIdx.x * out.k;
  const float* u_row = up + blockIdx.x * out.k;
  split_row(out, blockIdx.x, [&](int64_t i) {
    const float g = rounded(g_row[i], round), u = rounded(u_row[i], round);
    return rounded(rounded(g / (1.0f + expf(-g)), round) * u, round);
  });
}

// Sums the warps' shares in order and the three parts from the smallest; scales, adds the bias, stores.
template <Coding coding, int tiles>
__device__ void finish_tile(const Product& p, const Mat& w, int64_t first_row, const int32_t* slot, int count,
                            const float (&sum)[tiles][4]) {
  __shared__ float shares[kWarps][kTileRows][8 * tiles];
  const int warp = static_cast<int>(threadIdx.x) / 32, g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int q = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < tiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) shares[warp][g + 8 * (i / 2)][8 * n + 2 * q + i % 2] = sum[n][i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * count; i += kThreads) {
    const int64_t row = first_row + i % kTileRows;
    if (row >= w.n) continue;
    float total = 0;
    for (int part = p.x.parts - 1; part >= 0; --part) {
      float of_part = 0;
      for (int s = 0; s < kWarps; ++s) of_part += shares[s][i % kTileRows][i / kTileRows * p.x.parts + part];
      total += of_part;
    }
    if constexpr (coding == Coding::Fp8Row) total *= w.scale_at(row, 0);
    if (w.global != nullptr) total *= *w.global;
    const int32_t to = slot[i / kTileRows];
    const int exponent = p.x.exponent[to / p.groups.slots_per_row] + (coding == Coding::Nvfp4 ? kNvfp4Exponent : 0);
    total = ldexpf(total, exponent);
    if (p.bias != nullptr) total += p.bias[row];
    p.y[blockIdx.z].store(to, row, static_cast<double>(total), p.round);
  }
  __syncthreads();
}

// Blocks: [rows of the weight / (16 strips), groups or tiles of rows, matrices].
template <Coding coding, bool half, int tiles, int strips>
__global__ void __launch_bounds__(kThreads, tiles == 1 ? Unit<coding>::kBlocks : 2) product(Product p) {
  __shared__ int32_t slot[8 * tiles];
  const int most = 8 * tiles / p.x.parts;  // rows at once
  const bool grouped = p.groups.begin != nullptr;
  int begin = static_cast<int>(blockIdx.y) * most, end = min(begin + most, p.rows);
  int64_t expert = 0;
  if (grouped) {
    cudaGridDependencySynchronize();
    expert = p.groups.expert[blockIdx.y];
    if (expert < 0) return;
    begin = p.groups.begin[blockIdx.y], end = p.groups.begin[blockIdx.y + 1];
  }
  const Mat w = p.w[blockIdx.z][expert];
  for (; begin < end; begin += most) {
    const int count = min(most, end - begin);
    if (static_cast<int>(threadIdx.x) < count)
      slot[threadIdx.x] = grouped ? p.groups.slots[begin + threadIdx.x] : begin + static_cast<int>(threadIdx.x);
    __syncthreads();
    const uint16_t* column[tiles];
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      const int c = 8 * n + static_cast<int>(threadIdx.x) % 32 / 4;
      column[n] = nullptr;
      if (c < count * p.x.parts) {
        const int64_t row = slot[c / p.x.parts] / p.groups.slots_per_row;
        column[n] = p.x.data + (row * p.x.parts + c % p.x.parts) * p.x.k;
      }
    }
    float sum[strips][tiles][4] = {};
    const int64_t row = static_cast<int64_t>(blockIdx.x) * kTileRows * strips;
    multiply_tile<coding, half, tiles, strips>(w, row, column, sum);
#pragma unroll
    for (int s = 0; s < strips; ++s) finish_tile<coding, tiles>(p, w, row + kTileRows * s, slot, count, sum[s]);
  }
}

struct Grouping {
  const int32_t* experts = nullptr;  // [rows, k]
  int64_t ld = 0;
  Held held{};
  int rows = 0, k = 0, groups = 0;
  int32_t *expert = nullptr, *begin = nullptr, *slots = nullptr;  // of Groups
};
constexpr int kListed = 4096;  // choices that fit into shared memory; more are read again and again

// One block. Experts that have rows, in ascending order, and their slots, in ascending order.
__device__ void group_slots(const Grouping& g) {
  extern __shared__ int32_t counts[];  // [experts held], then up to kListed choices
  int32_t* listed = counts + g.held.count;
  const int e = static_cast<int>(threadIdx.x), all = g.rows * g.k;
  const bool short_list = all <= kListed;
  const auto read = [&](int i) { return g.held.index(g.experts[static_cast<int64_t>(i / g.k) * g.ld + i % g.k]); };
  const auto chosen = [&](int i) { return short_list ? listed[i] : read(i); };
  for (int i = e; i < g.held.count; i += static_cast<int>(blockDim.x)) counts[i] = 0;
  for (int i = e; i < g.groups; i += static_cast<int>(blockDim.x)) g.expert[i] = -1;
  for (int i = e; short_list && i < all; i += static_cast<int>(blockDim.x)) listed[i] = read(i);
  __syncthreads();
  for (int i = e; i < all; i += static_cast<int>(blockDim.x))
    if (chosen(i) >= 0) atomicAdd(&counts[chosen(i)], 1);
  __syncthreads();
  for (int mine = e; mine < g.held.count; mine += static_cast<int>(blockDim.x)) {
    if (counts[mine] == 0) continue;
    int group = 0, at = 0;
    for (int i = 0; i < mine; ++i) group += counts[i] > 0 ? 1 : 0, at += counts[i];
    g.expert[group] = mine;
    g.begin[group] = at;
    g.begin[group + 1] = at + counts[mine];  // the same value that the next group writes
    for (int i = 0; i < all; ++i)
      if (chosen(i) == mine) g.slots[at++] = i;
  }
}

// A block a row that splits it, and one that groups.
__global__ void prepare_experts(Act x, Columns out, Grouping grouping) {
  if (blockIdx.x == gridDim.x - 1) {
    cudaTriggerProgrammaticLaunchCompletion();
    group_slots(grouping);
  } else {
    split_row(out, blockIdx.x, [&](int64_t i) { return x.load(blockIdx.x, i); });
  }
}

struct Combine {
  const float* out = nullptr;  // [rows * k, hidden]
  const int32_t* experts = nullptr;
  const float* weights = nullptr;
  int64_t experts_ld = 0, weights_ld = 0;
  Held held{};
  int k = 0;
  bool round = false;
};

// As the definition rounds: each expert's output, the weighted sum, and the sum with the shared expert's.
__global__ void combine_experts(Combine c, Act shared, Act y, int64_t hidden) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t t = blockIdx.y;
  if (i >= hidden) return;
  double sum = 0;
  for (int j = 0; j < c.k; ++j) {
    if (c.held.index(c.experts[t * c.experts_ld + j]) < 0) continue;
    sum += static_cast<double>(c.weights[t * c.weights_ld + j]) *
           static_cast<double>(rounded(c.out[(t * c.k + j) * hidden + i], c.round));
  }
  if (c.round) sum = static_cast<double>(round_bf16(static_cast<float>(sum)));
  if (shared.data != nullptr) sum += static_cast<double>(shared.load(t, i));
  y.store(t, i, sum, c.round);
}

constexpr int64_t kFewBlocks =
    1056;  // eight for each multiprocessor of an H200: below, parallel rows are worth more than reuse

template <Coding coding, bool half, int tiles>
void multiply_tiles(const Product& p, int groups, int matrices, cudaStream_t stream) {
  const int most = 8 * tiles / p.x.parts;
  const int64_t down = groups > 0 ? groups : (p.rows + most - 1) / most;
  const int64_t strips = (p.w[0].first.n + kTileRows - 1) / kTileRows;
  const bool two = (strips + 1) / 2 * down * matrices >= kFewBlocks;
  const dim3 grid(static_cast<unsigned>(two ? (strips + 1) / 2 : strips), static_cast<unsigned>(down),
                  static_cast<unsigned>(matrices));
  launch_early(two ? product<coding, half, tiles, 2> : product<coding, half, tiles, 1>, grid, kThreads, 0, p, stream);
}

template <Coding coding, bool half>
void multiply(const Product& p, int groups, int matrices, cudaStream_t stream) {
  // Rows of one block; an expert may have more than the mean, and its weights are then read again.
  const int expected = groups > 0 ? (p.rows + groups - 1) / groups : p.rows;
  const int columns = expected * p.x.parts;
  if (columns <= 8) return multiply_tiles<coding, half, 1>(p, groups, matrices, stream);
  if (columns <= 24 || half) return multiply_tiles<coding, half, 3>(p, groups, matrices, stream);
  if constexpr (!half) multiply_tiles<coding, half, 6>(p, groups, matrices, stream);
}

// How activations are read, and the weights with them.
enum class How {
  Exact,    // f32 in three bf16 columns
  Rounded,  // in one
  Wide,     // in one, by wgmma: for many rows
};

template <How how>
void multiply(const Mat& like, const Product& p, int groups, int matrices, cudaStream_t stream) {
  if constexpr (how == How::Wide) return multiply_wide(like, p, groups, matrices, stream);
  constexpr bool kHalf = how == How::Rounded;
  if (like.element == DType::BF16) return multiply<Coding::Bf16, false>(p, groups, matrices, stream);
  if (like.element == DType::F4E2M1) return multiply<Coding::Nvfp4, kHalf>(p, groups, matrices, stream);
  if (like.block_k == 128) return multiply<Coding::Fp8Block, kHalf>(p, groups, matrices, stream);
  multiply<Coding::Fp8Row, kHalf>(p, groups, matrices, stream);
}

// Takes pieces of the workspace, each at a multiple of kPartAlign.
struct Pieces {
  std::byte* at;
  template <class T>
  T* take(int64_t count) {
    auto* piece = reinterpret_cast<T*>(at);
    at += aligned(count * static_cast<int64_t>(sizeof(T)));
    return piece;
  }
  template <How how>
  Columns columns(int64_t rows, const Mat& w, bool bf16) {
    Columns out = columns_at(at, rows, w.k);
    at += columns_bytes(rows, w.k);
    const bool fp4 = w.element == DType::F4E2M1, fp8 = w.element == DType::F8E4M3;
    out.parts = how != How::Exact || bf16 ? 1 : 3;
    out.half = how != How::Exact && (fp4 || fp8);
    if (how == How::Wide)
      out.order = fp4 ? Order::Steps32 : fp8 ? Order::Steps16 : Order::AsTheyLie;
    else
      out.order = fp4 ? Order::Pairs4 : fp8 && !out.half ? Order::Pairs2 : Order::AsTheyLie;
    return out;
  }
};
// The workspace begins at a multiple of 64: columns need 16.
Pieces pieces(const Stream& s, size_t need) {
  PLUMB_CHECK(s.workspace_bytes >= need, "workspace too small");
  return {s.workspace};
}

Act f32_rows(float* data, int64_t ld) { return {data, ld, false}; }

size_t linear_bytes(int64_t rows, int64_t k) { return static_cast<size_t>(columns_bytes(rows, k)); }

template <How how>
void linear(const LinearArgs& a, Stream& s) {
  const int64_t rows = a.x.dim(0);
  const Mat w = mat(*a.w);
  Pieces memory = pieces(s, linear_bytes(rows, w.k));
  Product p{.w = {Stack{w}, {}},
            .y = {act(a.y), {}},
            .x = memory.columns<how>(rows, w, a.x.dtype == DType::BF16),
            .bias = a.w->bias,
            .rows = static_cast<int>(rows),
            .round = a.numerics.round_bf16};
  split_activations<<<static_cast<unsigned>(rows), kSplitThreads, 0, handle(s)>>>(act(a.x), p.x);
  multiply<how>(w, p, 0, 1, handle(s));
}

size_t mlp_bytes(int64_t rows, int64_t inter, int64_t hidden) {
  return static_cast<size_t>(columns_bytes(rows, hidden) + 2 * aligned(rows * inter * 4) + columns_bytes(rows, inter));
}

// gate and up of `p.x` into `middle`, gated and split again
template <How how>
Columns gate_and_up(Product p, Pieces& memory, const Mat& down, int groups, cudaStream_t stream) {
  auto* gate = memory.take<float>(p.rows * down.k);
  auto* up = memory.take<float>(p.rows * down.k);
  p.y[0] = f32_rows(gate, down.k), p.y[1] = f32_rows(up, down.k);
  const bool round = p.round;
  p.round = false;
  const Columns middle = memory.columns<how>(p.rows, down, round);
  multiply<how>(p.w[0].first, p, groups, 2, stream);
  split_gated<<<static_cast<unsigned>(p.rows), kSplitThreads, 0, stream>>>(gate, up, round, middle);
  return middle;
}

template <How how>
void mlp(const MlpArgs& a, Stream& s) {
  const int64_t rows = a.x.dim(0);
  const Mat gate = mat(*a.gate), down = mat(*a.down);
  Pieces memory = pieces(s, mlp_bytes(rows, gate.n, gate.k));
  Product p{.w = {Stack{gate}, Stack{mat(*a.up)}},
            .x = memory.columns<how>(rows, gate, a.x.dtype == DType::BF16),
            .rows = static_cast<int>(rows),
            .round = a.numerics.round_bf16};
  split_activations<<<static_cast<unsigned>(rows), kSplitThreads, 0, handle(s)>>>(act(a.x), p.x);
  p.x = gate_and_up<how>(p, memory, down, 0, handle(s));
  p.w[0] = Stack{down};
  p.y[0] = act(a.y);
  multiply<how>(down, p, 0, 1, handle(s));
}

// Slots of unused experts don't occur, so a step has at most as many groups as slots.
size_t moe_bytes(int64_t rows, int64_t k, int64_t inter, int64_t hidden) {
  const int64_t slots = rows * k;
  return static_cast<size_t>(columns_bytes(rows, hidden) + 2 * aligned(slots * inter * 4) +
                             columns_bytes(slots, inter) + aligned(slots * hidden * 4) + 3 * aligned((slots + 1) * 4));
}

template <How how>
void moe(const MoeArgs& a, Stream& s) {
  const int64_t rows = a.x.dim(0), k = a.experts.dim(1), slots = rows * k;
  const Stack gate = stack(a.gate), down = stack(a.down);
  const int64_t hidden = gate.first.k;
  Pieces memory = pieces(s, moe_bytes(rows, k, gate.first.n, hidden));
  const auto experts = static_cast<int>(a.gate.size());
  const int groups = static_cast<int>(std::min<int64_t>(experts, slots));
  auto* expert = memory.take<int32_t>(slots + 1);
  auto* begin = memory.take<int32_t>(slots + 1);
  auto* list = memory.take<int32_t>(slots + 1);
  auto* out = memory.take<float>(slots * hidden);
  Product p{.w = {gate, stack(a.up)},
            .x = memory.columns<how>(rows, gate.first, a.x.dtype == DType::BF16),
            .rows = static_cast<int>(slots),
            .round = a.numerics.round_bf16,
            .groups = {expert, begin, list, static_cast<int>(k)}};
  const Grouping grouping{.experts = a.experts.i32(),
                          .ld = a.experts.ld,
                          .held = held(a),
                          .rows = static_cast<int>(rows),
                          .k = static_cast<int>(k),
                          .groups = groups,
                          .expert = expert,
                          .begin = begin,
                          .slots = list};
  // Rounded up: compiled code reads the counts up to 16 bytes at once.
  const auto shared = static_cast<size_t>(aligned((experts + std::min<int64_t>(slots, kListed)) * 4));
  prepare_experts<<<static_cast<unsigned>(rows) + 1, kSplitThreads, shared, handle(s)>>>(act(a.x), p.x, grouping);
  p.x = gate_and_up<how>(p, memory, down.first, groups, handle(s));
  p.groups.slots_per_row = 1;
  p.round = false;
  p.w[0] = down;
  p.y[0] = f32_rows(out, hidden);
  multiply<how>(down.first, p, groups, 1, handle(s));
  const Combine c{.out = out,
                  .experts = a.experts.i32(),
                  .weights = a.weights.f32(),
                  .experts_ld = a.experts.ld,
                  .weights_ld = a.weights.ld,
                  .held = held(a),
                  .k = static_cast<int>(k),
                  .round = a.numerics.round_bf16};
  combine_experts<<<dim3(static_cast<unsigned>((hidden + 255) / 256), static_cast<unsigned>(rows)), 256, 0,
                    handle(s)>>>(c, act(a.shared), act(a.y), hidden);
}

size_t linear_workspace(const Call& c) { return linear_bytes(c.m_hi, c.k); }
size_t mlp_workspace(const Call& c) { return mlp_bytes(c.m_hi, c.n, c.k); }
size_t moe_workspace(const Call& c) { return moe_bytes(c.m_hi, c.topk, c.n, c.k); }

struct Family {
  const char* name;
  std::vector<Format> formats;
  int64_t k_multiple;
};

template <How how>
Contract contract_of(Op op, const Family& family) {
  constexpr const char* kSuffix = how == How::Exact ? "" : how == How::Rounded ? ".bf16" : ".wide";
  Contract c;
  c.name = to_string(op) + "." + family.name + kSuffix + ".mma.cuda";
  c.op = op;
  c.weight = family.formats;
  if (how != How::Exact) c.reads = {kBf16};
  c.weight_layout = Layout::CudaRowMajor;
  c.arch = how == How::Wide ? Isa::Sm90a : Isa::CudaPortable;
  c.limits.k_multiple = how == How::Wide ? 128 : family.k_multiple;
  if (op != Op::Linear) c.limits.n_multiple = c.limits.k_multiple;  // the width in the middle is a k as well
  c.round_bf16 = true;
  c.deterministic = c.batch_invariant = true;
  c.sum_order = std::string(how == How::Wide ? "wgmma." : "mma8.") + family.name + kSuffix;
  // Exact products; tensor cores truncate when they add. One rounding of x, and one of what lies in the middle: to
  // bf16, or to f16 beside FP8 and NVFP4, which loses less.
  c.error_bound = {
      .c = how == How::Exact ? 8.0 : 1.0, .unit = how == How::Exact ? DType::F32 : DType::BF16, .floor = 0};
  // docs/performance.md. Exact: every weight is read once, where the naive kernel reads it once a row. Rounded: a row
  // is one column instead of three. Wide: columns are shared by 128 rows of the weight instead of 16, from nine rows
  // on.
  c.preference = how == How::Exact ? 10 : how == How::Rounded ? 20 : 30;
  // An expert sees a few rows of a step only; FP8's products for few rows cost more than the wide one even so.
  const bool fp8 = family.formats.front().element == DType::F8E4M3;
  c.preferred_from = how != How::Wide ? 1 : op != Op::Moe ? 9 : fp8 ? 8 : 65;
  c.workspace = op == Op::Linear ? linear_workspace : op == Op::Mlp ? mlp_workspace : moe_workspace;
  return c;
}

template <How how>
void add_family(std::vector<Kernel>& out, const Family& family) {
  out.push_back(make_kernel<LinearArgs, linear<how>>(contract_of<how>(Op::Linear, family)));
  out.push_back(make_kernel<MlpArgs, mlp<how>>(contract_of<how>(Op::Mlp, family)));
  out.push_back(make_kernel<MoeArgs, moe<how>>(contract_of<how>(Op::Moe, family)));
}

// Of narrow experts, a rank's slices, the wide product is the faster one from fewer rows on: 114 us instead of 142 for
// eight rows of slices of 256.
Kernel moe_of_slices(const Family& family) {
  Contract c = contract_of<How::Wide>(Op::Moe, family);
  c.name = "moe." + std::string(family.name) + ".wide.slices.mma.cuda";
  c.limits.n_max = 512;
  c.preferred_from = 8;
  return make_kernel<MoeArgs, moe<How::Wide>>(std::move(c));
}

}  // namespace

void add_mma_kernels(std::vector<Kernel>& out) {
  const Family families[] = {{"bf16", {kBf16}, 32},
                             {"fp8_block", {kFp8BlockF32, kFp8BlockUe8m0}, 128},
                             {"fp8_row", {kFp8Tensor, kFp8Channel}, 128},
                             {"nvfp4", {kNvfp4}, 128}};
  for (const Family& family : families) {
    add_family<How::Exact>(out, family);
    add_family<How::Rounded>(out, family);
    add_family<How::Wide>(out, family);
  }
  out.push_back(moe_of_slices(families[3]));
}

}  // namespace plumb::cuda
