// Products for many rows: a block of four warps multiplies 128 rows of the weight with up to 64 columns. Columns come
// through shared memory (three stages of 128 k, shared by the warps); weights go from memory to each warp's fragments
// as in tile.cuh, the next ones under way while these are multiplied. Where the weight has few rows, blocks share out k
// and their sums are added in order by a second kernel; how many depends on the weight alone, so that a column's bits
// do not depend on the columns beside it.
#include <algorithm>

#include "kernels/cuda/mma/product.cuh"
#include "kernels/cuda/mma/tile.cuh"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kStrips = 2;  // of 16 rows, of a warp
constexpr int kRows = kThreads / 32 * kStrips * kTileRows;
constexpr int kStep = 128;  // of k
constexpr int kStages = 3;
constexpr int kBlocks = 264;  // aimed at: two for each multiprocessor of an H200
constexpr int kMostSplits = 8;

template <Coding coding>
constexpr int kUnits = kStep / Unit<coding>::kElements;  // of a step
template <Coding coding>
constexpr int kAhead = coding == Coding::Bf16    ? 1
                       : coding == Coding::Nvfp4 ? 3
                                                 : 2;  // steps of weights in registers

template <int tiles>
constexpr int kStageBytes = tiles * 8 * kStep * 2;

// Columns of one step, as rows of 256 bytes with their 16-byte pieces swapped around so that reading hits every bank.
// `source`: where each column begins, in pieces.
template <int tiles>
__device__ void fetch_columns(const uint16_t* x, const int32_t* source, int count, int64_t step, bool there,
                              uint32_t stage) {
  const int first = static_cast<int>(threadIdx.x) / 16, piece = static_cast<int>(threadIdx.x) % 16;
  static_assert(kThreads / 16 == 8, "a thread's columns are eight apart");
  const uint32_t to = stage + static_cast<uint32_t>(first * kStep * 2 + (piece ^ first) * 16);
  const uint16_t* from = x + (step * (kStep / 8) + piece) * 8;
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
    const int column = first + 8 * i;
    const bool present = there && column < count;
    copy_async_16(to + static_cast<uint32_t>(i * 8 * kStep * 2),
                  present ? from + static_cast<int64_t>(source[column]) * 8 : x, present);
  }
  commit_copies();
}

__device__ inline uint4 load_piece(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

template <Coding coding, int tiles>
__device__ void multiply_step(const Loaded<coding> (&in)[kStrips], int unit, uint32_t stage, uint32_t zero,
                              float (&sum)[kStrips][tiles][4], uint32_t (&nan)[kStrips][2]) {
  using U = Unit<coding>;
  constexpr bool kBlock = coding == Coding::Fp8Block;
  const int q = static_cast<int>(threadIdx.x) % 4, g = static_cast<int>(threadIdx.x) % 32 / 4;
  float block[kStrips][tiles][4] = {};
#pragma unroll
  for (int i = 0; i < U::kLoads; ++i)
#pragma unroll
    for (int part = 0; part < U::kPerLoad / 8; ++part) {
      const int piece = (unit * U::kElements + U::kElements / U::kLoads * i + U::kPerLoad * q) / 8 + part;
      const uint32_t at = stage + static_cast<uint32_t>(g * kStep * 2 + (piece ^ g) * 16);
      uint32_t a[kStrips][2][4];
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        decode_eight<coding>(in[s], i, part, a[s]);
        if constexpr (coding == Coding::Fp8Block || coding == Coding::Fp8Row) {
          const uint4 l = in[s].low[i], h = in[s].high[i];
          nan[s][0] |= part == 0 ? has_nan(l.x) | has_nan(l.y) : has_nan(l.z) | has_nan(l.w);
          nan[s][1] |= part == 0 ? has_nan(h.x) | has_nan(h.y) : has_nan(h.z) | has_nan(h.w);
        }
      }
      // Loaded registers would be copied together anew for each product; results of an operation are kept as they are.
      if constexpr (coding == Coding::Bf16) {
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
          for (int j = 0; j < 8; ++j) a[s][j / 4][j % 4] ^= zero;
      }
      // Products that add to the same sums lie apart, so that one does not wait for the other.
      constexpr int kGroup = tiles < 4 ? tiles : 4;
#pragma unroll
      for (int begin = 0; begin < tiles; begin += kGroup) {
        uint4 x[kGroup];
#pragma unroll
        for (int n = 0; n < kGroup; ++n) x[n] = load_piece(at + (begin + n) * 8 * kStep * 2);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int n = 0; n < kGroup; ++n)
#pragma unroll
            for (int s = 0; s < kStrips; ++s) {
              auto& to = kBlock ? block[s][begin + n] : sum[s][begin + n];
              mma(to, a[s][half], half == 0 ? x[n].x : x[n].z, half == 0 ? x[n].y : x[n].w);
            }
      }
    }
  if constexpr (kBlock) {
#pragma unroll
    for (int s = 0; s < kStrips; ++s)
#pragma unroll
      for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[s][n][i] = fmaf(in[s].scale, block[s][n][i], sum[s][n][i]);
  }
}

// The weights of a warp's 32 rows that are under way, and where the next are found.
template <Coding coding>
struct Weights {
  static constexpr int kBits = coding == Coding::Bf16 ? 16 : coding == Coding::Nvfp4 ? 4 : 8;
  Loaded<coding> ring[kAhead<coding>][kUnits<coding>][kStrips];
  const uint8_t *low[kStrips], *high[kStrips];                // this lane's first 16 bytes of rows g and g + 8
  const uint8_t *scales_low[kStrips], *scales_high[kStrips];  // Nvfp4
  int64_t block = 0;                                          // Fp8Block: index of the block's first scale

  __device__ Weights(const Mat& w, int64_t row) {
    const int64_t g = static_cast<int64_t>(threadIdx.x) % 32 / 4, q = static_cast<int64_t>(threadIdx.x) % 4;
    block = row / 128 * w.scale_ld;  // the block's 128 rows begin at a multiple of 128
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const int64_t l = min(row + kTileRows * s + g, w.n - 1), h = min(row + kTileRows * s + g + 8, w.n - 1);
      low[s] = w.data + l * (w.k * kBits / 8) + 16 * q, high[s] = w.data + h * (w.k * kBits / 8) + 16 * q;
      if constexpr (coding == Coding::Nvfp4)
        scales_low[s] = w.scale + l * w.scale_ld + 2 * q, scales_high[s] = w.scale + h * w.scale_ld + 2 * q;
    }
  }
  __device__ void load(const Mat& w, int64_t step, int at, int unit) {
    using U = Unit<coding>;
    const int64_t which = step * kUnits<coding> + unit, offset = which * U::kElements * kBits / 8;
    float scale = 1;
    if constexpr (coding == Coding::Fp8Block) scale = block_scale(w, block + which);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      Loaded<coding>& to = ring[at][unit][s];
#pragma unroll
      for (int i = 0; i < U::kLoads; ++i)
        to.low[i] = load_once(low[s] + offset + 64 * i), to.high[i] = load_once(high[s] + offset + 64 * i);
      to.scale = scale;
      if constexpr (coding == Coding::Nvfp4) {
        to.scales_low = *reinterpret_cast<const uint16_t*>(scales_low[s] + which * 8);
        to.scales_high = *reinterpret_cast<const uint16_t*>(scales_high[s] + which * 8);
      }
    }
  }
};

template <Coding coding, int tiles>
__device__ void store_tile(const Product& p, const Mat& w, int64_t row, const int32_t* slot, int count,
                           const float (&sum)[kStrips][tiles][4], uint32_t (&nan)[kStrips][2]) {
  const int q = static_cast<int>(threadIdx.x) % 4, g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int matrix = static_cast<int>(blockIdx.z) / p.splits;
#pragma unroll
  for (int s = 0; s < kStrips; ++s)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t any = nan[s][half];
      any |= __shfl_xor_sync(~0u, any, 1);
      any |= __shfl_xor_sync(~0u, any, 2);
      const int64_t r = row + kTileRows * s + g + 8 * half;
      float scale = any != 0 ? bits_to_f32(0x7fc00000u) : 1.0f;
      if (r < w.n) {
        if constexpr (coding == Coding::Fp8Row) scale *= w.scale_at(r, 0);
        if (w.global != nullptr) scale *= *w.global;
      }
#pragma unroll
      for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = n * 8 + 2 * q + i;
          if (column >= count || r >= w.n) continue;
          const int32_t to = slot[column];
          const int exponent =
              p.x.exponent[to / p.groups.slots_per_row] + (coding == Coding::Nvfp4 ? kNvfp4Exponent : 0);
          float total = ldexpf(sum[s][n][2 * half + i] * scale, exponent);
          if (p.splits > 1) {
            p.partial[(static_cast<int64_t>(blockIdx.z) * p.rows + to) * w.n + r] = total;
          } else {
            if (p.bias != nullptr) total += p.bias[r];
            p.y[matrix].store(to, r, static_cast<double>(total), p.round);
          }
        }
    }
}

// Blocks: [128 rows of the weight, groups or tiles of columns, matrices x parts of k].
template <Coding coding, int tiles>
__global__ void __launch_bounds__(kThreads, 2) wide_product(Product p) {
  extern __shared__ __align__(128) unsigned char stages[];
  __shared__ int32_t slot[8 * tiles], source[8 * tiles];
  constexpr int kMost = 8 * tiles;
  const bool grouped = p.groups.begin != nullptr;
  int begin = static_cast<int>(blockIdx.y) * kMost, end = min(begin + kMost, p.rows);
  int64_t expert = 0;
  if (grouped) {
    cudaGridDependencySynchronize();
    expert = p.groups.expert[blockIdx.y];
    if (expert < 0) return;
    begin = p.groups.begin[blockIdx.y], end = p.groups.begin[blockIdx.y + 1];
  }
  const Mat w = p.w[static_cast<int>(blockIdx.z) / p.splits][expert];
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / 32 * kStrips * kTileRows;
  const int64_t steps = w.k / kStep, share = (steps + p.splits - 1) / p.splits;
  const int64_t first = blockIdx.z % static_cast<unsigned>(p.splits) * share, last = min(first + share, steps);
  const uint32_t memory = shared_address(stages);
  for (; begin < end; begin += kMost) {
    const int count = min(kMost, end - begin);
    if (static_cast<int>(threadIdx.x) < count) {
      const int32_t mine = grouped ? p.groups.slots[begin + threadIdx.x] : begin + static_cast<int>(threadIdx.x);
      slot[threadIdx.x] = mine;
      source[threadIdx.x] = static_cast<int32_t>(mine / p.groups.slots_per_row * (p.x.k / 8));
    }
    Weights<coding> weights(w, row);
#pragma unroll
    for (int r = 0; r < kAhead<coding>; ++r)
#pragma unroll
      for (int unit = 0; unit < kUnits<coding>; ++unit)
        if (first + r < last) weights.load(w, first + r, r, unit);
    __syncthreads();
    cudaGridDependencySynchronize();
    for (int s = 0; s < kStages - 1; ++s)
      fetch_columns<tiles>(p.x.data, source, count, first + s, first + s < last, memory + s * kStageBytes<tiles>);
    float sum[kStrips][tiles][4] = {};
    uint32_t nan[kStrips][2] = {};
    int stage = 0;
    for (int64_t step = first; step < last; step += kAhead<coding>) {
#pragma unroll
      for (int r = 0; r < kAhead<coding>; ++r) {
        if (step + r >= last) break;
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
        __syncthreads();
        const int64_t next = step + r + kStages - 1;
        fetch_columns<tiles>(p.x.data, source, count, next, next < last,
                             memory + (stage + kStages - 1) % kStages * kStageBytes<tiles>);
#pragma unroll
        for (int unit = 0; unit < kUnits<coding>; ++unit) {
          multiply_step<coding, tiles>(weights.ring[r][unit], unit, memory + stage * kStageBytes<tiles>, p.zero, sum,
                                       nan);
          if (step + r + kAhead<coding> < last) weights.load(w, step + r + kAhead<coding>, r, unit);
        }
        stage = (stage + 1) % kStages;
      }
    }
    store_tile<coding, tiles>(p, w, row, slot, count, sum, nan);
    wait_for_copies();
    __syncthreads();
  }
}

__global__ void add_parts(Product p, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (i >= n) return;
  const float* part = p.partial + (static_cast<int64_t>(blockIdx.z) * p.splits * p.rows + row) * n + i;
  float total = 0;
  for (int s = 0; s < p.splits; ++s) total += part[s * p.rows * n];
  if (p.bias != nullptr) total += p.bias[i];
  p.y[blockIdx.z].store(row, i, static_cast<double>(total), p.round);
}

template <Coding coding, int tiles>
void multiply_tiles(const Product& p, int groups, int matrices, cudaStream_t stream) {
  const int64_t n = p.w[0].first.n;
  const auto down = static_cast<unsigned>(groups > 0 ? groups : (p.rows + 8 * tiles - 1) / (8 * tiles));
  const dim3 grid(static_cast<unsigned>((n + kRows - 1) / kRows), down, static_cast<unsigned>(matrices * p.splits));
  constexpr int kBytes = kStages * kStageBytes<tiles>;
  if (kBytes > 48 * 1024 - 1024) {
    const cudaError_t status =
        cudaFuncSetAttribute(wide_product<coding, tiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    PLUMB_CHECK(status == cudaSuccess, cudaGetErrorString(status));
  }
  launch_early(wide_product<coding, tiles>, grid, kThreads, kBytes, p, stream);
  if (p.splits == 1) return;
  const dim3 add(static_cast<unsigned>((n + 255) / 256), static_cast<unsigned>(p.rows),
                 static_cast<unsigned>(matrices));
  add_parts<<<add, 256, 0, stream>>>(p, n);
}

template <Coding coding>
void multiply_coding(const Product& p, int groups, int matrices, cudaStream_t stream) {
  const int expected = groups > 0 ? (p.rows + groups - 1) / groups : p.rows;
  if (expected <= 16) return multiply_tiles<coding, 2>(p, groups, matrices, stream);
  if (expected <= 32) return multiply_tiles<coding, 4>(p, groups, matrices, stream);
  multiply_tiles<coding, 8>(p, groups, matrices, stream);
}

}  // namespace

int wide_splits(int64_t n, int64_t k, int matrices, bool grouped) {
  if (grouped) return 1;
  const int64_t blocks = (n + kRows - 1) / kRows * matrices;
  return static_cast<int>(std::clamp<int64_t>(kBlocks / blocks, 1, std::min<int64_t>(kMostSplits, k / kStep)));
}

void multiply_wide(const Mat& like, Product p, int groups, int matrices, cudaStream_t stream) {
  p.splits = wide_splits(like.n, like.k, matrices, groups > 0);
  if (like.element == DType::BF16) return multiply_coding<Coding::Bf16>(p, groups, matrices, stream);
  if (like.element == DType::F4E2M1) return multiply_coding<Coding::Nvfp4>(p, groups, matrices, stream);
  if (like.block_k == 128) return multiply_coding<Coding::Fp8Block>(p, groups, matrices, stream);
  multiply_coding<Coding::Fp8Row>(p, groups, matrices, stream);
}

}  // namespace plumb::cuda
