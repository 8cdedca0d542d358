// Sparse MLA in absorbed form on the tensor cores (model.md 3.6), in three kernels:
//   absorb_queries  q_lat[t, h] = W_UK[h]^T q_nope[t, h], bf16
//   attend_cluster  rank 512: by Hopper's products (attend_cluster.cuh), or
//   attend_split    by mma.sync: one block a row, up to 64 heads and a part of the selected positions. Tiles of 64
//                   latent rows are gathered into shared memory as bf16 (the next one is on its way while this one is
//                   multiplied); S^T = K Q^T, an online softmax in base 2, and O^T += V^T P^T, where V is the first
//                   `rank` of K
//   project_values  multiplies by W_UV[h]; joins attend_split's parts
// Heads are the n of every large product, so that eight heads of a tensor-parallel rank waste nothing.
#include <algorithm>

#include "kernels/cuda/mma/attend_cluster.cuh"
#include "kernels/cuda/mma/attend_products.cuh"
#include "kernels/cuda/mma/attend_split.cuh"
#include "kernels/cuda/mma/mma_kernels.h"

namespace plumb::cuda {
namespace {

using namespace mla;

constexpr int kRowChunk = 128;  // rows of the step at a time: bounds the workspace
constexpr int kBlocks = 132;    // aimed at: one for each multiprocessor of an H200
constexpr int kFixedSplits = 4;

template <class Function>
void allow(Function* kernel, int bytes) {
  if (bytes > 48 * 1024) {
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    PLUMB_CHECK(status == cudaSuccess, cudaGetErrorString(status));
  }
}

// A kernel that may start while the one before it still runs; it waits for what it needs of that one. Blocks beside
// each other in x are a cluster, where there are `cluster` of them.
template <class... Args>
void launch_early(void (*kernel)(Args...), dim3 grid, int threads, int shared_bytes, unsigned cluster,
                  cudaStream_t stream, Args... args) {
  allow(kernel, shared_bytes);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, args...);
  PLUMB_CHECK(status == cudaSuccess, cudaGetErrorString(status));
}

template <int head_tiles, bool fp8, bool wide = true>
void launch_cluster(const Attend& a, const MlaAttendArgs& args, cudaStream_t stream) {
  using L = ClusterLayout<head_tiles>;
  const auto parts = static_cast<unsigned>(a.splits);
  const dim3 grid(parts, static_cast<unsigned>(a.rows), static_cast<unsigned>((a.heads + L::kHeads - 1) / L::kHeads));
  launch_early(attend_cluster<head_tiles, fp8, wide>, grid, kClusterThreads, L::kBytes, parts, stream, a, args.paging,
               args.kv);
}
template <bool fp8>
void launch_cluster(const Attend& a, const MlaAttendArgs& args, cudaStream_t stream) {
  if (a.rope % 8 != 0) return launch_cluster<8, fp8, false>(a, args, stream);
  if (a.heads <= 8) return launch_cluster<1, fp8>(a, args, stream);
  if (a.heads <= 16) return launch_cluster<2, fp8>(a, args, stream);
  if (a.heads <= 32) return launch_cluster<4, fp8>(a, args, stream);
  launch_cluster<8, fp8>(a, args, stream);
}

template <int rank_width, int head_tiles, bool fp8>
void launch_split(const Attend& a, const MlaAttendArgs& args, cudaStream_t stream) {
  using L = SplitLayout<rank_width, head_tiles, fp8>;
  allow(attend_split<rank_width, head_tiles, fp8>, L::kBytes);
  const dim3 grid(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.splits),
                  static_cast<unsigned>((a.heads + L::kHeads - 1) / L::kHeads));
  attend_split<rank_width, head_tiles, fp8><<<grid, kThreads, L::kBytes, stream>>>(a, args.paging, args.kv);
}
template <bool fp8>
void launch_split(const Attend& a, const MlaAttendArgs& args, cudaStream_t stream) {
  if (a.rank == 128) return launch_split<128, 1, fp8>(a, args, stream);
  if (a.heads <= 8) return launch_split<512, 1, fp8>(a, args, stream);
  if (a.heads <= 16) return launch_split<512, 2, fp8>(a, args, stream);
  if (a.heads <= 32) return launch_split<512, 4, fp8>(a, args, stream);
  launch_split<512, 8, fp8>(a, args, stream);
}

int groups_of(int64_t heads, int64_t rank) {
  return static_cast<int>(rank == 128 ? (heads + 7) / 8 : (heads + 63) / 64);
}
// Which kernel attends, and into how many parts it divides the positions.
enum class How { Split, SplitFixed, Cluster, ClusterFixed };
constexpr bool is_cluster(How how) { return how == How::Cluster || how == How::ClusterFixed; }
constexpr bool is_fixed(How how) { return how == How::SplitFixed || how == How::ClusterFixed; }

int tiles_of(int64_t topk) { return static_cast<int>((topk + kKeys - 1) / kKeys); }
// Parts of the selected positions: enough blocks for every multiprocessor, or the same for every batch.
int splits_of(int64_t rows, int64_t heads, int64_t rank, int64_t topk, How how) {
  const int64_t wanted = is_fixed(how) ? kFixedSplits : kBlocks / std::max<int64_t>(1, rows * groups_of(heads, rank));
  const int64_t most = is_cluster(how) ? std::min(tiles_of(topk), kMostParts) : tiles_of(topk);
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, most));
}

int64_t query_bytes(int64_t heads, int64_t rank) { return aligned(kRowChunk * heads * rank * 2); }
int64_t rows_times_splits(const Call& c, How how) {
  int64_t most = 1;
  for (int64_t rows = 1; rows <= kRowChunk; ++rows)
    most = std::max(most, rows * splits_of(rows, c.heads, c.k, c.topk, how));
  return most;
}
template <How how>
size_t workspace_bytes(const Call& c) {
  const int64_t queries = query_bytes(c.heads, c.k);
  if constexpr (is_cluster(how)) return static_cast<size_t>(queries);
  const int64_t parts = rows_times_splits(c, how) * c.heads;
  return static_cast<size_t>(queries + aligned(parts * c.k * 4) + aligned(parts * 4));
}

template <How how>
void mla_attend(const MlaAttendArgs& args, Stream& s) {
  const KvGeometry& g = args.kv.geometry;
  Attend a{.q = act(args.q),
           .kv_b = mat(*args.kv_b),
           .heads = args.heads,
           .nope = args.nope_dim,
           .rope = args.rope_dim,
           .v = args.v_dim,
           .rank = g.kv_lora_rank,
           .scale = args.softmax_scale * 1.4426950408889634f,
           .topk = args.topk_indices.i32(),
           .topk_ld = args.topk_indices.ld,
           .topk_count = static_cast<int>(args.topk_indices.dim(1)),
           .out = act(args.out),
           .round = args.numerics.round_bf16};
  const Call call{.k = a.rank, .heads = a.heads, .topk = a.topk_count};
  PLUMB_CHECK(s.workspace_bytes >= workspace_bytes<how>(call), "workspace too small");
  a.q_lat = reinterpret_cast<uint16_t*>(s.workspace);
  if constexpr (!is_cluster(how)) {
    a.part = reinterpret_cast<float*>(s.workspace + query_bytes(a.heads, a.rank));
    a.log_sum = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(a.part) +
                                         aligned(rows_times_splits(call, how) * a.heads * a.rank * 4));
  }
  for (; a.first_row < args.paging.rows; a.first_row += kRowChunk) {
    a.rows = static_cast<int>(std::min<int64_t>(kRowChunk, args.paging.rows - a.first_row));
    a.splits = splits_of(a.rows, a.heads, a.rank, a.topk_count, how);
    a.tiles = (tiles_of(a.topk_count) + a.splits - 1) / a.splits;
    // Few heads make few blocks: fewer rows in each, then, down to what one product of fragments takes.
    a.tokens = kTokens;
    while (a.tokens > 8 && (a.rows + a.tokens - 1) / a.tokens * a.heads * 2 < kBlocks) a.tokens /= 2;
    const int absorb_bytes = absorb_bytes_of(a.nope), project_bytes = project_bytes_of(a.rank);
    const auto heads = static_cast<unsigned>(a.heads);
    const auto tokens = static_cast<unsigned>((a.rows + a.tokens - 1) / a.tokens);
    const auto with_kind = [&](auto absorb, auto project) {
      launch_early(absorb, dim3(heads, static_cast<unsigned>(a.rank / kColumns), tokens), kThreads, absorb_bytes, 1,
                   handle(s), a);
      const bool fp8 = g.latent == KvFormat::Fp8Tile128;
      if constexpr (is_cluster(how))
        fp8 ? launch_cluster<true>(a, args, handle(s)) : launch_cluster<false>(a, args, handle(s));
      else
        fp8 ? launch_split<true>(a, args, handle(s)) : launch_split<false>(a, args, handle(s));
      launch_early(project, dim3(heads, static_cast<unsigned>((a.v + kColumns - 1) / kColumns), tokens), kThreads,
                   project_bytes, 1, handle(s), a, args.paging.sequence);
    };
    const WeightKind kind = kind_of(a.kv_b);
    if (kind == WeightKind::Bf16)
      with_kind(absorb_queries<WeightKind::Bf16>, project_values<WeightKind::Bf16>);
    else if (kind == WeightKind::Fp8Block)
      with_kind(absorb_queries<WeightKind::Fp8Block>, project_values<WeightKind::Fp8Block>);
    else
      with_kind(absorb_queries<WeightKind::Any>, project_values<WeightKind::Any>);
  }
}

// Roundings to bf16: q, W_UK, q_lat and the latent row in a score; probability, latent row, o_lat and W_UV in the sum.
template <How how>
Contract contract() {
  constexpr bool kCluster = is_cluster(how), kFixed = is_fixed(how);
  const std::string kind = std::string(kCluster ? "cluster" : "split") + (kFixed ? "4" : "");
  Contract c;
  c.name = "mla_attend." + kind + (kCluster ? ".wgmma.cuda" : ".mma.cuda");
  c.op = Op::MlaAttend;
  c.weight = {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4};
  c.weight_layout = Layout::CudaRowMajor;
  c.reads = {kBf16};
  c.kv = {KvFormat::Bf16, KvFormat::Fp8Tile128};
  c.arch = Isa::Sm90a;  // wgmma; up to 227 KB of shared memory a block
  c.limits = {.k_multiple = 128, .k_max = 512, .topk_max = kMaxTopk, .rope_max = kRopeWidth};
  if constexpr (kCluster) c.limits = {.k_multiple = kClusterRank, .k_max = kClusterRank, .rope_max = kRopeWidth};
  c.round_bf16 = c.norm_two_roundings = c.index_hadamard = true;
  c.deterministic = true;
  c.batch_invariant = kFixed;
  c.sum_order = kind + (kCluster ? ".wgmma" : ".mma");
  c.error_bound = {.c = 4, .unit = DType::BF16, .floor = 0};
  c.preference = (kCluster ? 40 : 20) + (kFixed ? 0 : 10);  // docs/performance.md
  c.workspace = workspace_bytes<how>;
  return c;
}

template <How how>
void add_kernel(std::vector<Kernel>& out) {
  out.push_back(make_kernel<MlaAttendArgs, mla_attend<how>>(contract<how>()));
}

}  // namespace

void add_attend_kernels(std::vector<Kernel>& out) {
  add_kernel<How::Split>(out);
  add_kernel<How::SplitFixed>(out);
  add_kernel<How::Cluster>(out);
  add_kernel<How::ClusterFixed>(out);
}

}  // namespace plumb::cuda
