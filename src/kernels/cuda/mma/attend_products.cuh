// The products with kv_b around the attention: queries into the latent space, and what was attended to out of it.
#pragma once

#include "kernels/cuda/mma/attend.cuh"
#include "kernels/cuda/mma/wgmma.cuh"

namespace plumb::cuda::mla {

// The queries' length as products take it, and the shared memory of absorb_queries and project_values, in bytes.
__host__ __device__ inline int absorb_depth(int nope) { return (nope + 63) / 64 * 64; }
inline int absorb_bytes_of(int nope) {
  return std::max(absorb_depth(nope) * (2 * 128 + kTokens * 2), kTokens * (kColumns + 8) * 2);
}
inline int project_bytes_of(int rank) { return (kColumns + kTokens) * rank * 2; }

// Blocks: [heads, columns of the latent / 128, rows / a.tokens]. The weights are on their way while queries are made.
// Each of two groups of four warps has 64 columns.
template <WeightKind kind>
__global__ void __launch_bounds__(kThreads, 2) absorb_queries(Attend a) {
  extern __shared__ __align__(kSwizzleBytes) unsigned char absorb_memory[];
  constexpr int kPieces = kColumns / 8, kResultStride = kColumns + 8;
  const int padded = absorb_depth(a.nope);
  // Blocks of 64 columns of the weight, then blocks of 64 elements of the queries; later the results.
  const uint32_t weights = shared_address(absorb_memory), queries = weights + static_cast<uint32_t>(padded * 2 * 128);
  const int h = static_cast<int>(blockIdx.x), first_column = static_cast<int>(blockIdx.y) * kColumns;
  const int first = static_cast<int>(blockIdx.z) * a.tokens, count = min(a.tokens, a.rows - first);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  const int warp = __shfl_sync(~0u, tid / 32, 0), group = warp / 4;
  const int64_t w_row = static_cast<int64_t>(h) * (a.nope + a.v);
  const auto place = [&](int row, int piece) {
    return swizzled(weights + static_cast<uint32_t>(piece / 8 * padded * 128), row, piece % 8);
  };
  if constexpr (kind == WeightKind::Bf16) {
    const uint8_t* from = a.kv_b.data + (w_row * a.kv_b.k + first_column) * 2;
    for (int i = tid; i < padded * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      copy_async_16(place(row, piece), from + (row < a.nope ? row : 0) * a.kv_b.k * 2 + piece * 16, row < a.nope);
    }
    commit_copies();
  } else {
    stage(
        padded * kPieces,
        [&](int i) {
          Eight<kind> eight;
          if (i / kPieces < a.nope) eight.load(a.kv_b, w_row + i / kPieces, first_column + i % kPieces * 8);
          return eight;
        },
        [&](int i, const Eight<kind>& eight) {
          store_shared(place(i / kPieces, i % kPieces), i / kPieces < a.nope ? eight.decoded() : uint4{0, 0, 0, 0});
        });
  }
  cudaGridDependencySynchronize();
  // Not before: what runs next may read what the kernels before this one wrote.
  cudaTriggerProgrammaticLaunchCompletion();
  const int tiles = (count + 7) / 8;
  const bool aligned = fours_aligned(a.q, a.nope + a.rope);
  constexpr int kOfWarp = kTokens * 32 / kThreads;
  for (int begin = lane * 4; begin < padded; begin += 128) {
    FourOfQuery four[kOfWarp];
#pragma unroll
    for (int j = 0; j < kOfWarp; ++j) {
      const int t = min(warp + j * (kThreads / 32), count - 1);
      four[j].load(a.q, a.first_row + first + t, static_cast<int64_t>(h) * (a.nope + a.rope) + begin, a.nope - begin,
                   aligned);
    }
#pragma unroll
    for (int j = 0; j < kOfWarp; ++j) {
      const int t = warp + j * (kThreads / 32);
      const uint32_t at = swizzled(queries + static_cast<uint32_t>(begin / 64 * kTokens * 128), t, begin % 64 / 8) +
                          static_cast<uint32_t>(begin % 8 * 2);
      store_shared(at, pack_bf16(four[j].x[0], four[j].x[1]));
      store_shared(at + 4, pack_bf16(four[j].x[2], four[j].x[3]));
    }
  }
  wait_for_copies();
  publish_shared();
  __syncthreads();
  float sum[kTokens / 2] = {};
  for (int block = 0; block < padded / 64; ++block) {
    const uint64_t rows = columns_of(weights + static_cast<uint32_t>((group * padded + block * 64) * 128));
    const uint64_t columns = rows_of(queries + static_cast<uint32_t>(block * kTokens * 128));
    pin(sum);
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      multiply_across(sum, rows + static_cast<uint64_t>(step * 2 * kSwizzleBytes / 16),
                      columns + static_cast<uint64_t>(step * 2), true);
    commit_products();
    wait_for_products<0>();
    pin(sum);
  }
  __syncthreads();  // the weights have been read: [token][kResultStride] takes their place
  auto* results = reinterpret_cast<uint16_t*>(absorb_memory);
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n < tiles)
        results[(n * 8 + lane % 4 * 2 + i % 2) * kResultStride + warp * 16 + lane / 4 + i / 2 * 8] =
            f32_to_bf16(sum[n * 4 + i]);
  __syncthreads();
  for (int i = tid; i < count * kPieces; i += kThreads) {
    const int t = i / kPieces, piece = i % kPieces;
    *reinterpret_cast<uint4*>(a.q_lat + (static_cast<int64_t>(first + t) * a.heads + h) * a.rank + first_column +
                              piece * 8) = *reinterpret_cast<const uint4*>(results + t * kResultStride + piece * 8);
  }
}

// o_lat of one row and head: the splits' parts by their shares of the softmax's sum. A warp; a lane has two of each 64
// elements, and puts them where they belong: put(first, pair).
template <class Put>
__device__ void join(const Attend& a, int64_t local, int h, Put put) {
  constexpr int kMost = 512 / 64;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* log_sum = a.log_sum + local * a.splits * a.heads + h;
  const float* part = a.part + (local * a.splits * a.heads + h) * a.rank + lane * 2;
  float largest = -INFINITY;
  for (int s = lane; s < a.splits; s += 32) largest = fmaxf(largest, log_sum[s * a.heads]);
  for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
  float sum[kMost][2] = {}, total = 0;
  for (int begin = 0; begin < a.splits; begin += 32) {
    const float own = begin + lane < a.splits ? log_sum[(begin + lane) * a.heads] : -INFINITY;
    const float weight = own == -INFINITY ? 0.0f : exp2f(own - largest);
    const int count = min(32, a.splits - begin);
#pragma unroll 2
    for (int s = 0; s < count; ++s) {
      const float share = __shfl_sync(~0u, weight, s);
      if (share == 0) continue;  // a part that saw nothing was never written
      total += share;
      const float* from = part + static_cast<int64_t>(begin + s) * a.heads * a.rank;
      float2 value[kMost];
#pragma unroll
      for (int i = 0; i < kMost; ++i)
        if (64 * i < a.rank) value[i] = *reinterpret_cast<const float2*>(from + 64 * i);
#pragma unroll
      for (int i = 0; i < kMost; ++i)
        if (64 * i < a.rank)
          sum[i][0] = fmaf(share, value[i].x, sum[i][0]), sum[i][1] = fmaf(share, value[i].y, sum[i][1]);
    }
  }
  const float inverse = total == 0 ? 0.0f : 1.0f / total;
#pragma unroll
  for (int i = 0; i < kMost; ++i)
    if (64 * i < a.rank) put(lane * 2 + 64 * i, pack_bf16(sum[i][0] * inverse, sum[i][1] * inverse));
}

// Out of joined latents in place of the queries or, where there are parts, out of these. Blocks: [heads, values / 128,
// rows / a.tokens]; each of two groups of four warps has 64 values. The weights are on their way while the attention
// still runs.
template <WeightKind kind>
__global__ void __launch_bounds__(kThreads, 1) project_values(Attend a, const int32_t* sequence) {
  extern __shared__ __align__(kSwizzleBytes) unsigned char project_memory[];
  const int h = static_cast<int>(blockIdx.x), first_value = static_cast<int>(blockIdx.y) * kColumns;
  const int first = static_cast<int>(blockIdx.z) * a.tokens, count = min(a.tokens, a.rows - first);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, g = lane / 4, q = lane % 4;
  const int warp = __shfl_sync(~0u, tid / 32, 0), group = warp / 4;
  const int tiles = (count + 7) / 8, pieces = a.rank / 8;
  // Blocks of 64 elements of the 128 values' weights, then of the rows' latents.
  const uint32_t weights = shared_address(project_memory);
  const uint32_t latents = weights + static_cast<uint32_t>(kColumns * a.rank * 2);
  const int64_t w_row = static_cast<int64_t>(h) * (a.nope + a.v) + a.nope;
  const auto row_of = [&](int value) { return w_row + min(first_value + value, a.v - 1); };
  const auto weight_at = [&](int value, int piece) {
    return swizzled(weights + static_cast<uint32_t>(piece / 8 * kColumns * 128), value, piece % 8);
  };
  if constexpr (kind == WeightKind::Bf16) {
#pragma unroll 4
    for (int value = warp; value < kColumns; value += kThreads / 32)
      for (int piece = lane; piece < pieces; piece += 32)
        copy_async_16(weight_at(value, piece), a.kv_b.data + row_of(value) * a.kv_b.k * 2 + piece * 16, true);
  } else {
    stage(
        kColumns * pieces,
        [&](int i) {
          Eight<kind> eight;
          eight.load(a.kv_b, row_of(i / pieces), i % pieces * 8);
          return eight;
        },
        [&](int i, const Eight<kind>& eight) { store_shared(weight_at(i / pieces, i % pieces), eight.decoded()); });
  }
  commit_copies();
  // Which of the warp's tokens are somebody's, a bit each.
  const int mine = warp + lane * (kThreads / 32);
  const unsigned present =
      __ballot_sync(~0u, mine < count && sequence[a.first_row + first + min(mine, count - 1)] >= 0);
  cudaGridDependencySynchronize();
  for (int t = warp; t < tiles * 8; t += kThreads / 32) {
    const bool there = (present >> (t / (kThreads / 32)) & 1u) != 0;
    const auto place = [&](int piece) {
      return swizzled(latents + static_cast<uint32_t>(piece / 8 * kTokens * 128), t, piece % 8);
    };
    if (a.part == nullptr) {
      const uint16_t* from = a.q_lat + (static_cast<int64_t>(first + min(t, count - 1)) * a.heads + h) * a.rank;
      for (int piece = lane; piece < pieces; piece += 32) copy_async_16(place(piece), from + piece * 8, there);
    } else if (there) {
      join(a, first + t, h, [&](int c, uint32_t pair) { store_shared(place(c / 8) + c % 8 * 2, pair); });
    } else {
      for (int piece = lane; piece < pieces; piece += 32) store_shared(place(piece), {0, 0, 0, 0});
    }
  }
  commit_copies();
  wait_for_copies();
  publish_shared();
  __syncthreads();
  float sum[kTokens / 2] = {};
  for (int block = 0; block < a.rank / 64; ++block) {
    const uint64_t rows = rows_of(weights + static_cast<uint32_t>((block * kColumns + group * 64) * 128));
    const uint64_t columns = rows_of(latents + static_cast<uint32_t>(block * kTokens * 128));
    pin(sum);
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      multiply_shared(sum, rows + static_cast<uint64_t>(step * 2), columns + static_cast<uint64_t>(step * 2), true);
    commit_products();
    wait_for_products<0>();
    pin(sum);
  }
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    const int t = i / 4 * 8 + q * 2 + i % 2, value = first_value + warp * 16 + g + i % 4 / 2 * 8;
    if (t < count && value < a.v)
      a.out.store(a.first_row + first + t, static_cast<int64_t>(h) * a.v + value, static_cast<double>(sum[i]), a.round);
  }
}

}  // namespace plumb::cuda::mla
