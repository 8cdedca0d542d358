// Selection of the k largest scores of a row by a cluster of blocks, each with its stretch of it, in four passes:
// range, histogram, counting and collection in ascending order. Bins are linear between the smallest and the largest
// finite score, so that scores of any scale spread over them; what falls into the threshold's bin is settled by exact
// comparison in the first block's shared memory, which all of the cluster fill. Where too much falls into one bin (many
// equal scores, or an outlier), four rounds of eight bits of the key find the threshold exactly instead, in one block.
#include <cooperative_groups.h>

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/rows/row_kernels.h"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr int kCandidates = 2048;  // of the threshold's bin
constexpr int kMaxTopk = 2048;
constexpr int kEach = 4;  // neighbouring scores of a thread in a tile
constexpr int kMaxCluster = 8;
constexpr int kBlocks = 132;  // for which a cluster is chosen: an H200's multiprocessors

// Larger score, larger key; NaN counts as -inf; -0 and +0 are equal.
__device__ uint32_t key_of(float score) {
  if (score != score) score = -INFINITY;
  const uint32_t bits = f32_to_bits(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Shared {
  int histogram[kBins];  // of this block's stretch; then of the row
  int partial[kBins];
  int32_t sure[kMaxTopk];  // positions above the threshold's bin, ascending
  int32_t candidate[kCandidates];
  uint32_t candidate_key[kCandidates];
  int32_t chosen[kMaxTopk];
  int warp_count[kWarps];
  float low[kWarps], high[kWarps];
  float block_low, block_high;
  int block_count;  // sure ones, and candidates times 2^16
  int bin, left;    // the threshold's bin; how many of its scores are taken
  uint32_t key;
};

struct Bins {
  float low, scale;
  // Monotonous in the score, NaN and -inf first, +inf last.
  __device__ int bin(float score) const {
    const float at = (score - low) * scale;
    return at >= kBins - 1 ? kBins - 1 : at > 0 ? static_cast<int>(at) : 0;
  }
};

// The sum of `value` over the threads before this one, and over all.
__device__ int scan(int value, int* warp_count, int& total) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int sum = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += below;
  }
  __syncthreads();
  if (lane == 31) warp_count[warp] = sum;
  __syncthreads();
  const int of_warp = warp_count[lane];
  int before = of_warp;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(~0u, before, offset);
    if (lane >= offset) before += below;
  }
  total = __shfl_sync(~0u, before, 31);
  const int mine = __shfl_sync(~0u, before - of_warp, warp);
  return mine + sum - value;
}

// Walks from the highest bin down to the one in which `wanted` is reached.
__device__ void find_bin(Shared& s, int bins, int wanted) {
  const int tid = static_cast<int>(threadIdx.x);
  const int each = bins / kThreads > 0 ? bins / kThreads : 1;
  const int top = bins - 1 - tid * each;  // this thread's highest bin
  int count = 0;
  for (int i = 0; i < each; ++i)
    if (top - i >= 0) count += s.histogram[top - i];
  int total;
  int before = scan(count, s.warp_count, total);
  if (before < wanted && wanted <= before + count) {
    for (int i = 0; i < each; ++i) {
      const int here = s.histogram[top - i];
      if (wanted <= before + here) {
        s.bin = top - i;
        s.left = wanted - before;
        break;
      }
      before += here;
    }
  }
  __syncthreads();
}

// f(j, score) for j = begin, begin + step ... below end, with kBatch loads under way.
constexpr int kBatch = 16;
template <class F>
__device__ void sweep(const float* row, int begin, int end, int step, F f) {
  for (int first = begin; first < end; first += step * kBatch) {
    float score[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + step * i < end) score[i] = row[first + step * i];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + step * i < end) f(first + step * i, score[i]);
  }
}

__device__ float score_at(const float* row, int length, int j) { return j < length ? row[j] : -INFINITY; }

// out = all positions with take(position, score) = 1 and the first `equal` with take = 2, ascending.
template <class Take>
__device__ void collect(const float* row, int length, int equal, Shared& s, int32_t* out, Take take) {
  int taken = 0, equals = 0;
  for (int begin = 0; begin < length; begin += kThreads * kEach) {
    const int first = begin + static_cast<int>(threadIdx.x) * kEach;
    int how[kEach], above = 0, same = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      how[i] = first + i < length ? take(first + i, row[first + i]) : 0;
      above += how[i] == 1 ? 1 : 0;
      same += how[i] == 2 ? 1 : 0;
    }
    int total;
    const int before = scan(above | same << 16, s.warp_count, total);
    int same_at = equals + (before >> 16);
    int at = taken + (before & 0xffff) + min(same_at, equal);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool in = how[i] == 1 || (how[i] == 2 && same_at < equal);
      if (how[i] == 2) ++same_at;
      if (in) out[at++] = first + i;
    }
    taken += total & 0xffff;
    equals += total >> 16;
  }
}

// The threshold's key by four rounds of eight bits; then one pass that collects.
__device__ void select_exactly(const float* row, int length, int topk, Shared& s, int32_t* out) {
  const int tid = static_cast<int>(threadIdx.x);
  uint32_t prefix = 0;
  int left = topk;
  __syncthreads();  // the histogram may still be read
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (tid < 256) s.histogram[tid] = 0;
    __syncthreads();
    for (int begin = 0; begin < length; begin += kThreads) {
      const int j = begin + tid;
      const uint32_t key = key_of(score_at(row, length, j));
      const bool in = j < length && (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8));
      // Scores of one warp often fall together: one addition for all of a kind.
      const uint32_t digit = in ? key >> shift & 255u : 256u;
      const uint32_t peers = __match_any_sync(~0u, digit);
      if (in && (peers & ((1u << (tid % 32)) - 1)) == 0) atomicAdd(&s.histogram[digit], __popc(peers));
    }
    __syncthreads();
    find_bin(s, 256, left);
    prefix |= static_cast<uint32_t>(s.bin) << shift;
    left = s.left;
    __syncthreads();
  }
  collect(row, length, left, s, out, [&](int, float score) {
    const uint32_t key = key_of(score);
    return key > prefix ? 1 : key == prefix ? 2 : 0;
  });
}

// Blocks: [cluster, rows].
__global__ void __launch_bounds__(kThreads, 1)
    select_rows(const float* logits, int64_t logits_ld, const int32_t* positions, int topk, int32_t* indices,
                int64_t indices_ld) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const auto cluster = cooperative_groups::this_cluster();
  const auto of_block = [&](unsigned rank) -> Shared& { return *cluster.map_shared_rank(&s, rank); };
  const unsigned blocks = gridDim.x, block = blockIdx.x;
  const int64_t r = blockIdx.y;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  int32_t* out = indices + r * indices_ld;
  const int length = positions[r] + 1;
  if (length <= topk) {
    for (int i = tid; block == 0 && i < topk; i += kThreads) out[i] = i < length ? i : -1;
    return;
  }
  const float* row = logits + r * logits_ld;
  const int share = (length + static_cast<int>(blocks) - 1) / static_cast<int>(blocks);
  const int block_begin = min(length, static_cast<int>(block) * share), block_end = min(length, block_begin + share);
  for (int i = tid; i < kBins; i += kThreads) s.partial[i] = 0;
  float low = INFINITY, high = -INFINITY;
  sweep(row, block_begin + tid, block_end, kThreads, [&](int, float score) {
    if (fabsf(score) < INFINITY) low = fminf(low, score), high = fmaxf(high, score);
  });
  for (int offset = 16; offset > 0; offset /= 2) {
    low = fminf(low, __shfl_xor_sync(~0u, low, offset));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, offset));
  }
  if (lane == 0) s.low[warp] = low, s.high[warp] = high;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) low = fminf(low, s.low[w]), high = fmaxf(high, s.high[w]);
  if (tid == 0) s.block_low = low, s.block_high = high;
  cluster.sync();
  for (unsigned b = 0; b < blocks; ++b)
    low = fminf(low, of_block(b).block_low), high = fmaxf(high, of_block(b).block_high);
  const Bins range{low, static_cast<float>(kBins - 1) / (high - low)};
  const bool spread = range.scale > 0 && range.scale < INFINITY;
  if (spread)
    sweep(row, block_begin + tid, block_end, kThreads,
          [&](int, float score) { atomicAdd(&s.partial[range.bin(score)], 1); });
  cluster.sync();
  for (int i = tid; i < kBins; i += kThreads) {
    int sum = 0;
    for (unsigned b = 0; b < blocks; ++b) sum += of_block(b).partial[i];
    s.histogram[i] = sum;
  }
  __syncthreads();
  if (spread) find_bin(s, kBins, topk);
  const int bin = s.bin, left = s.left;
  const bool exactly = !spread || s.histogram[bin] > kCandidates;
  if (exactly) {
    cluster.sync();  // nobody reads another's memory any more
    if (block == 0) select_exactly(row, length, topk, s, out);
    return;
  }

  // Every warp goes through its own stretch of the row: first counting, then, knowing what lies before, writing.
  const int stretch = (block_end - block_begin + kThreads - 1) / kThreads * 32, begin = block_begin + warp * stretch;
  const int end = min(block_end, begin + stretch);
  int mine = 0;
  sweep(row, begin + lane, end, 32, [&](int, float score) {
    const int here = range.bin(score);
    mine += here > bin ? 1 : here == bin ? 1 << 16 : 0;
  });
  for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0u, mine, offset);
  if (lane == 0) s.warp_count[warp] = mine;
  __syncthreads();
  int count = 0, at = 0, candidate_at = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) at = count & 0xffff, candidate_at = count >> 16;
    count += s.warp_count[w];
  }
  if (tid == 0) s.block_count = count;
  cluster.sync();
  int sure = 0, candidates = 0;
  for (unsigned b = 0; b < blocks; ++b) {
    const int of = of_block(b).block_count;
    if (b < block) at += of & 0xffff, candidate_at += of >> 16;
    sure += of & 0xffff, candidates += of >> 16;
  }
  Shared& to = of_block(0);
  for (int first = begin; first < end; first += 32 * kBatch) {
    float score[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + 32 * i + lane < end) score[i] = row[first + 32 * i + lane];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int j = first + 32 * i + lane, here = j < end ? range.bin(score[i]) : -1;
      const unsigned above = __ballot_sync(~0u, here > bin), same = __ballot_sync(~0u, here == bin);
      const unsigned before = (1u << lane) - 1;
      if (here > bin) to.sure[at + __popc(above & before)] = j;
      if (here == bin) {
        const int place = candidate_at + __popc(same & before);
        to.candidate[place] = j;
        to.candidate_key[place] = key_of(score[i]);
      }
      at += __popc(above), candidate_at += __popc(same);
    }
  }
  cluster.sync();
  if (block != 0) return;
  // A candidate is taken when fewer than `left` come before it: larger keys, and equal ones further to the left.
  int chosen = 0;
  for (int first = 0; first < candidates; first += kThreads) {
    const int i = first + tid;
    bool in = false;
    if (i < candidates) {
      const uint32_t key = s.candidate_key[i];
      int before = 0;
      for (int o = 0; o < candidates; ++o) {
        const uint32_t other = s.candidate_key[o];
        before += other > key || (other == key && o < i) ? 1 : 0;
      }
      in = before < left;
    }
    int total;
    const int place = chosen + scan(in ? 1 : 0, s.warp_count, total);
    if (in) s.chosen[place] = s.candidate[i];
    chosen += total;
  }
  __syncthreads();
  // Both lists ascend: a position's place is its place in its own plus how many of the other come before it.
  const auto below = [](const int32_t* list, int count, int32_t position) {
    int first = 0;
    while (first < count) {
      const int middle = (first + count) / 2;
      if (list[middle] < position)
        first = middle + 1;
      else
        count = middle;
    }
    return first;
  };
  for (int i = tid; i < sure; i += kThreads) out[i + below(s.chosen, chosen, s.sure[i])] = s.sure[i];
  for (int i = tid; i < chosen; i += kThreads) out[i + below(s.sure, sure, s.chosen[i])] = s.chosen[i];
}

void top_k(const TopKArgs& a, Stream& s) {
  cudaError_t status = cudaFuncSetAttribute(select_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  PLUMB_CHECK(status == cudaSuccess, cudaGetErrorString(status));
  const int64_t rows = a.indices.dim(0);
  unsigned cluster = kMaxCluster;
  while (cluster > 1 && rows * cluster > kBlocks) cluster /= 2;
  cudaLaunchAttribute shape{};
  shape.id = cudaLaunchAttributeClusterDimension;
  shape.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cluster, static_cast<unsigned>(rows));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = handle(s);
  config.attrs = &shape;
  config.numAttrs = 1;
  status = cudaLaunchKernelEx(&config, select_rows, static_cast<const float*>(a.logits.data), a.logits.ld, a.positions,
                              a.topk, a.indices.i32(), a.indices.ld);
  PLUMB_CHECK(status == cudaSuccess, cudaGetErrorString(status));
}

}  // namespace

void add_topk_kernels(std::vector<Kernel>& out) {
  Contract c = row_contract(Op::TopK, "histogram");
  c.limits.topk_max = kMaxTopk;
  out.push_back(make_kernel<TopKArgs, top_k>(std::move(c)));
}

}  // namespace plumb::cuda
