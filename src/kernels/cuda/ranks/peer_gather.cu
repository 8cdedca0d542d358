// Columns of all ranks brought to rank 0: each leaves its own where rank 0's kernel reads them.
#include <algorithm>

#include "kernels/cuda/ranks/peer.cuh"
#include "kernels/cuda/ranks/rank_kernels.h"

namespace plumb::cuda {
namespace {

struct Columns {
  const float* x;  // [rows, width], rows x_ld apart
  int64_t x_ld, width;
  int64_t rows, share;  // width of all but the last rank
  float* y;             // [rows, n], on rank 0
  int64_t y_ld, n;
  __device__ int64_t width_of(int rank) const {
    const int64_t left = n - rank * share;
    return left < share ? left : share;
  }
};

// Every gridDim.x-th row is a block's.
__global__ void gather(const __grid_constant__ PeerView v, Columns c) {
  Mailbox& own = v.own();
  const Turn turn = begin_turn(v, own.gather);
  if (turn.broken) return;
  if (v.rank != 0) {
    // Has rank 0 read what lay here two launches ago?
    const bool free = threadIdx.x > 0 || turn.number <= 2 || await(&own.taken, turn.number - 2, v.control, 0);
    if (__syncthreads_and(free) == 0) {
      if (threadIdx.x == 0) own.broken = 1;
      return;
    }
    for (int64_t t = blockIdx.x; t < c.rows; t += gridDim.x)
      for (int64_t i = threadIdx.x; i < c.width; i += blockDim.x)
        own.columns[turn.slot][t * c.width + i] = c.x[t * c.x_ld + i];
    __syncthreads();
    if (threadIdx.x == 0) raise(&v.box[0]->columns_flag[turn.slot][v.rank][blockIdx.x], turn.number);
    end_turn(own.gather, turn);
    return;
  }
  for (int64_t t = blockIdx.x; t < c.rows; t += gridDim.x)
    for (int64_t i = threadIdx.x; i < c.width; i += blockDim.x) c.y[t * c.y_ld + i] = c.x[t * c.x_ld + i];
  if (!await_others(v, turn, [&](int p) { return &own.columns_flag[turn.slot][p][blockIdx.x]; })) return;
  for (int p = 1; p < v.ranks; ++p) {
    const int64_t width = c.width_of(p);
    for (int64_t t = blockIdx.x; t < c.rows; t += gridDim.x)
      for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
        c.y[t * c.y_ld + p * c.share + i] = __ldcg(&v.box[p]->columns[turn.slot][t * width + i]);
  }
  if (end_turn(own.gather, turn))
    for (int p = 1; p < v.ranks; ++p) raise(&v.box[p]->taken, turn.number);
}

void gather_columns(const GatherColumnsArgs& args, Stream& stream) {
  const PeerMemory* link = args.comm->attached<PeerMemory>();
  PLUMB_CHECK(link != nullptr, "ranks are connected before they launch");
  const Rows x = rows_of(args.x);
  const int64_t step = std::max<int64_t>(kPieceBytes / 4 / args.share, 1);
  PLUMB_CHECK(args.share * 4 <= kPieceBytes, "a row of columns is larger than a piece");
  for (int64_t first = 0; first < args.x.dim(0); first += step) {
    const int64_t rows = std::min(step, args.x.dim(0) - first);
    float* const y = args.comm->rank() == 0 ? static_cast<float*>(args.y.data) + first * args.y.ld : nullptr;
    const Columns c{x.data + first * x.ld, x.ld, x.n, rows, args.share, y, args.y.ld, args.y.dim(1)};
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(rows, kPeerBlocks));
    gather<<<blocks, kPeerThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(link->view(), c);
  }
}

}  // namespace

void add_peer_gather(std::vector<Kernel>& out) {
  out.push_back(make_kernel<GatherColumnsArgs, gather_columns>(peer_gather_contract()));
  out.back().connect = PeerMemory::connect;
}

}  // namespace plumb::cuda
