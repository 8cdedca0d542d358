// Products for many rows: a block of two groups of four warps multiplies 128 rows of the weight with up to 64 columns,
// by wgmma. Weights and columns come through shared memory, several steps of k under way; BF16 is multiplied there as
// it lies, FP8 and NVFP4 are decoded to f16 in registers. Where the weight has few rows, the blocks of a cluster share
// out k, and add up their sums in order out of each other's shared memory; how many depends on the weight alone, so
// that a column's bits do not depend on the columns beside it.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/mma/product.cuh"
#include "kernels/cuda/mma/tile.cuh"
#include "kernels/cuda/mma/wgmma.cuh"

namespace plumb::cuda {
namespace {

constexpr int kGroups = 2;
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kRows = kGroups * 64;
constexpr int kMultiprocessors = 132;  // of an H200
constexpr int kMostSplits = 8;         // a cluster
constexpr int kSumStride = kRows + 4;  // floats of a column of sums

template <Coding coding>
constexpr int kStep = coding == Coding::Bf16 ? 64 : 128;  // of k
// What one step takes in shared memory: columns, in blocks of 64 k; rows of the weight; their scales.
template <Coding coding, int tiles>
struct Stage {
  static constexpr int kBlock = tiles * kSwizzleBytes;
  static constexpr int kRowBytes = coding == Coding::Nvfp4 ? 64 : 128;
  static constexpr int kWeights = kStep<coding> / 64 * kBlock;
  static constexpr int kScales = kWeights + kRows * kRowBytes;
  static constexpr int kBytes = kScales + (coding == Coding::Nvfp4 ? kRows * 8 : 0);
  static constexpr int kCount = std::min(6, 100 * 1024 / kBytes);  // two blocks a multiprocessor
  static constexpr int kAll = std::max(kCount * kBytes, 8 * tiles * kSumStride * 4) + kSwizzleBytes;
};

// Columns of one step. `source`: where each column begins, in pieces of 16 bytes.
template <Coding coding, int tiles>
__device__ void fetch_columns(const uint16_t* x, const int32_t* source, int count, int step, uint32_t stage) {
  constexpr int kPieces = kStep<coding> / 8, kAtOnce = kThreads / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces, first = static_cast<int>(threadIdx.x) / kPieces;
#pragma unroll
  for (int i = 0; i < (8 * tiles + kAtOnce - 1) / kAtOnce; ++i) {
    const int column = first + i * kAtOnce;
    if (8 * tiles % kAtOnce != 0 && column >= 8 * tiles) continue;
    const bool present = column < count;
    copy_async_16(swizzled(stage + static_cast<uint32_t>(piece / 8 * Stage<coding, tiles>::kBlock), column, piece % 8),
                  present ? x + (static_cast<int64_t>(source[column]) + step * kPieces + piece) * 8 : x, present);
  }
}

// Where piece `piece` of a row of the weight lies: so that products (BF16) or lanes 4 g + q that read pieces q of rows
// g (others) meet every bank.
template <Coding coding>
__device__ uint32_t weight_piece(uint32_t weights, int row, int piece) {
  if constexpr (coding == Coding::Bf16) return swizzled(weights, row, piece);
  if constexpr (coding == Coding::Nvfp4) return weights + static_cast<uint32_t>(row * 64 + piece * 16);
  return weights + static_cast<uint32_t>(row * 128 + (piece ^ (row & 1) * 4) * 16);
}
// Weights of one step; rows behind the last one are the last one.
template <Coding coding, int tiles>
__device__ void fetch_weights(const Mat& w, int64_t first_row, int step, uint32_t stage) {
  using S = Stage<coding, tiles>;
  constexpr int kPieces = S::kRowBytes / 16, kAtOnce = kThreads / kPieces;
  const int64_t row_bytes = w.k / kStep<coding> * S::kRowBytes;
  const int piece = static_cast<int>(threadIdx.x) % kPieces, first = static_cast<int>(threadIdx.x) / kPieces;
  const int last = static_cast<int>(min(w.n - first_row, int64_t{kRows})) - 1;
  const uint8_t* from = w.data + first_row * row_bytes + step * S::kRowBytes + piece * 16;
#pragma unroll
  for (int i = 0; i < kRows / kAtOnce; ++i) {
    const int row = first + i * kAtOnce;
    copy_async_16(weight_piece<coding>(stage + S::kWeights, row, piece), from + min(row, last) * row_bytes, true);
  }
  if constexpr (coding == Coding::Nvfp4) {
    const int row = static_cast<int>(threadIdx.x) / 2, half = static_cast<int>(threadIdx.x) % 2 * 4;
    copy_async_4(stage + S::kScales + static_cast<uint32_t>(row * 8 + half),
                 w.scale + (first_row + min(row, last)) * w.scale_ld + step * 8 + half, true);
  }
}

__device__ inline uint4 load_piece(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ inline uint32_t load_scales(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
  return v;
}

// sum (+)= this warp's rows by the columns of one step. What is decoded is so in halves, one while the other is
// multiplied.
template <Coding coding, int tiles>
__device__ void multiply_step(uint32_t stage, float (&sum)[4 * tiles], bool add) {
  using S = Stage<coding, tiles>;
  const uint64_t columns = rows_of(stage);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads, lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (coding == Coding::Bf16) {
    const uint64_t weights = rows_of(stage + S::kWeights + group * 64 * S::kRowBytes);
    begin_products();
#pragma unroll
    for (int step = 0; step < kStep<coding> / 16; ++step)
      multiply_shared(sum, weights + static_cast<uint64_t>(step * 2), columns + static_cast<uint64_t>(step * 2),
                      add || step > 0);
    commit_products();
  } else {
    const int row = static_cast<int>(threadIdx.x) / 32 * kTileRows + lane / 4, q = lane % 4;
    Loaded<coding> in;
    if constexpr (coding == Coding::Nvfp4) {
      in.scales_low = load_scales(stage + S::kScales + static_cast<uint32_t>(row * 8 + 2 * q));
      in.scales_high = load_scales(stage + S::kScales + static_cast<uint32_t>(row * 8 + 64 + 2 * q));
    }
    constexpr int kParts = kStep<coding> / 32, kOfLoad = kParts / Unit<coding>::kLoads;  // 8 elements of a lane each
    // Decoded registers are kept while products read them: with many columns one part after the other, lest sums spill.
    constexpr int kTogether = tiles == 8 ? 1 : 2;
#pragma unroll
    for (int begin = 0; begin < kParts; begin += kTogether) {
      if (begin % kOfLoad == 0) {
        const int i = begin / kOfLoad;
        in.low[i] = load_piece(weight_piece<coding>(stage + S::kWeights, row, q + 4 * i));
        in.high[i] = load_piece(weight_piece<coding>(stage + S::kWeights, row + 8, q + 4 * i));
      }
      uint32_t a[kTogether][2][4];
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        decode_eight<coding, true>(in, (begin + j) / kOfLoad, (begin + j) % kOfLoad, a[j]);
      begin_products();
#pragma unroll
      for (int j = 0; j < 2 * kTogether; ++j) {
        const int step = begin * 2 + j;
        multiply_f16(sum, a[j / 2][j % 2], columns + static_cast<uint64_t>(step / 4 * (S::kBlock / 16) + step % 4 * 2),
                     add || step > 0);
      }
      commit_products();
      if (kTogether == 1 && begin > 0) wait_for_products<1>();
    }
  }
}

// What a thread has of its group's 64 rows, into a column-wise tile of the block's.
template <int tiles>
__device__ void put_sums(const float (&sum)[4 * tiles], float* to) {
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  const int q = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < tiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[(n * 8 + q * 2 + i % 2) * kSumStride + row + i / 2 * 8] = sum[n * 4 + i];
}

// Blocks: [128 rows of the weight, groups or tiles of columns, matrices x parts of k]; the parts are a cluster.
template <Coding coding, int tiles>
__global__ void __launch_bounds__(kThreads, 2) wide_product(Product p) {
  extern __shared__ unsigned char shared[];
  __shared__ int32_t slot[8 * tiles], source[8 * tiles];
  __shared__ float2 factor[8 * tiles];  // 2 to the column's exponent, in two factors that are normal numbers
  constexpr int kMost = 8 * tiles;
  auto* stages = shared + (kSwizzleBytes - shared_address(shared) % kSwizzleBytes) % kSwizzleBytes;
  const bool grouped = p.groups.begin != nullptr;
  int begin = static_cast<int>(blockIdx.y) * kMost, end = min(begin + kMost, p.rows);
  int64_t expert = 0;
  if (grouped) {
    cudaGridDependencySynchronize();
    expert = p.groups.expert[blockIdx.y];
    if (expert < 0) return;
    begin = p.groups.begin[blockIdx.y], end = p.groups.begin[blockIdx.y + 1];
  }
  const int matrix = static_cast<int>(blockIdx.z) / p.splits, split = static_cast<int>(blockIdx.z) % p.splits;
  const Mat w = p.w[matrix][expert];
  const int tid = static_cast<int>(threadIdx.x);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  using S = Stage<coding, tiles>;
  const int steps = static_cast<int>(w.k / kStep<coding>), share = (steps + p.splits - 1) / p.splits;
  const int first = split * share, last = min(first + share, steps);
  const uint32_t memory = shared_address(stages);
  for (; begin < end; begin += kMost) {
    const int count = min(kMost, end - begin);
    for (int s = 0; s < S::kCount - 1; ++s)
      if (first + s < last) fetch_weights<coding, tiles>(w, first_row, first + s, memory + s * S::kBytes);
    cudaGridDependencySynchronize();
    if (tid < count) {
      const int32_t mine = grouped ? p.groups.slots[begin + tid] : begin + tid;
      const int32_t row = mine / p.groups.slots_per_row;
      slot[tid] = mine;
      source[tid] = static_cast<int32_t>(row * (p.x.k / 8));
      const int exponent = p.x.exponent[row] + (coding == Coding::Nvfp4 ? kNvfp4Exponent : 0);
      factor[tid] = {ldexpf(1.0f, exponent / 2), ldexpf(1.0f, exponent - exponent / 2)};
    }
    __syncthreads();
    for (int s = 0; s < S::kCount - 1; ++s) {
      if (first + s < last) fetch_columns<coding, tiles>(p.x.data, source, count, first + s, memory + s * S::kBytes);
      commit_copies();
    }
    float sum[4 * tiles] = {};
    const int64_t scales = first_row / 128 * w.scale_ld;
    float scale = 1;
    if constexpr (coding == Coding::Fp8Block) scale = block_scale(w, scales + min(first, steps - 1));
    int stage = 0, free = S::kCount - 1;
    for (int step = first; step < last; ++step) {
      asm volatile("cp.async.wait_group %0;" ::"n"(S::kCount - 2) : "memory");
      publish_shared();
      __syncthreads();  // and nobody reads the stage that is fetched next any more
      const int next = step + S::kCount - 1;
      if (next < last) {
        fetch_weights<coding, tiles>(w, first_row, next, memory + free * S::kBytes);
        fetch_columns<coding, tiles>(p.x.data, source, count, next, memory + free * S::kBytes);
      }
      commit_copies();
      if constexpr (coding == Coding::Fp8Block) {
        float block[4 * tiles];
        multiply_step<coding, tiles>(memory + stage * S::kBytes, block, false);
        const float here = scale;
        scale = block_scale(w, scales + min(step + 1, steps - 1));
        wait_for_products<0>();
        pin(block);
#pragma unroll
        for (int i = 0; i < 4 * tiles; ++i) sum[i] = fmaf(here, block[i], sum[i]);
      } else {
        multiply_step<coding, tiles>(memory + stage * S::kBytes, sum, true);
        wait_for_products<0>();
        pin(sum);
      }
      stage = stage + 1 == S::kCount ? 0 : stage + 1;
      free = free + 1 == S::kCount ? 0 : free + 1;
    }
    wait_for_copies();
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(stages);
    put_sums<tiles>(sum, sums);
    const auto cluster = cooperative_groups::this_cluster();
    const float global = w.global != nullptr ? *w.global : 1.0f;
    if (p.splits > 1)
      cluster.sync();
    else
      __syncthreads();
    // Each block its share of the elements; lanes take neighbouring rows of a column.
    for (int i = split * kThreads + tid; i < count * kRows; i += p.splits * kThreads) {
      const int column = i / kRows;
      const int64_t r = first_row + i % kRows;
      if (r >= w.n) continue;
      float* at = sums + column * kSumStride + i % kRows;
      float part[kMostSplits];  // all on their way before the first is added
#pragma unroll
      for (int s = 0; s < kMostSplits; ++s)
        if (s < p.splits) part[s] = p.splits == 1 ? *at : *cluster.map_shared_rank(at, s);
      float value = part[0];
#pragma unroll
      for (int s = 1; s < kMostSplits; ++s)
        if (s < p.splits) value += part[s];
      if constexpr (coding == Coding::Fp8Row) value *= w.scale_at(r, 0);
      const float2 scale = factor[column];
      value = value * global * scale.x * scale.y;
      if (p.bias != nullptr) value += p.bias[r];
      p.y[matrix].store(slot[column], r, static_cast<double>(value), p.round);
    }
    if (p.splits > 1)
      cluster.sync();
    else
      __syncthreads();
  }
}

template <Coding coding, int tiles>
void multiply_tiles(const Product& p, int groups, int matrices, cudaStream_t stream) {
  const int64_t n = p.w[0].first.n;
  const auto down = static_cast<unsigned>(groups > 0 ? groups : (p.rows + 8 * tiles - 1) / (8 * tiles));
  const auto parts = static_cast<unsigned>(p.splits);
  constexpr int kBytes = Stage<coding, tiles>::kAll;
  cudaError_t status =
      cudaFuncSetAttribute(wide_product<coding, tiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  PLUMB_CHECK(status == cudaSuccess, cudaGetErrorString(status));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {1, 1, parts};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((n + kRows - 1) / kRows), down, static_cast<unsigned>(matrices) * parts);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = parts > 1 ? 2 : 1;
  status = cudaLaunchKernelEx(&config, wide_product<coding, tiles>, p);
  PLUMB_CHECK(status == cudaSuccess, cudaGetErrorString(status));
}

template <Coding coding>
void multiply_coding(const Product& p, int groups, int matrices, cudaStream_t stream) {
  const int expected = groups > 0 ? (p.rows + groups - 1) / groups : p.rows;
  if (expected <= 16) return multiply_tiles<coding, 2>(p, groups, matrices, stream);
  if (expected <= 32) return multiply_tiles<coding, 4>(p, groups, matrices, stream);
  multiply_tiles<coding, 8>(p, groups, matrices, stream);
}

// Blocks that share out k: as many as give every multiprocessor as equal a share as can be, each costing a little.
int splits_of(int64_t n, int64_t k, int matrices) {
  constexpr int64_t kLeastSteps = 2;  // of 128
  const int64_t blocks = (n + kRows - 1) / kRows * matrices;
  int best = 1;
  double least = 0;
  for (int splits = 1; splits <= std::min<int64_t>(kMostSplits, k / (128 * kLeastSteps)); ++splits) {
    const int64_t of_one = (blocks * splits + kMultiprocessors - 1) / kMultiprocessors;
    const double cost = static_cast<double>(of_one) / splits * (1 + 0.02 * splits);
    if (splits == 1 || cost < least) best = splits, least = cost;
  }
  return best;
}

}  // namespace

void multiply_wide(const Mat& like, Product p, int groups, int matrices, cudaStream_t stream) {
  p.splits = groups > 0 ? 1 : splits_of(like.n, like.k, matrices);
  if (like.element == DType::BF16) return multiply_coding<Coding::Bf16>(p, groups, matrices, stream);
  if (like.element == DType::F4E2M1) return multiply_coding<Coding::Nvfp4>(p, groups, matrices, stream);
  if (like.block_k == 128) return multiply_coding<Coding::Fp8Block>(p, groups, matrices, stream);
  multiply_coding<Coding::Fp8Row>(p, groups, matrices, stream);
}

}  // namespace plumb::cuda
