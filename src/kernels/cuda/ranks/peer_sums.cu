// Sums among ranks through memory that their devices reach of each other, in order of rank: the same bits on every
// rank, and those of comm/. One-shot sends the whole message to everyone; two-shot sends each rank its slice, and the
// finished slice to everyone: less to move, one more wait.
#include <algorithm>

#include "kernels/cuda/ranks/peer.cuh"
#include "kernels/cuda/ranks/rank_kernels.h"

namespace plumb::cuda {
namespace {

cudaStream_t handle(Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

// Part `block` of `blocks` of `count` vectors.
struct Part {
  int64_t begin, end;
};
__device__ Part part_of(int64_t count) {
  const int64_t each = (count + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * each;
  return {begin, begin + each < count ? begin + each : count};
}

// sum over ranks r, in order, of mine (r == rank) or theirs(r)
template <int V, class Theirs>
__device__ typename Vec<V>::Type sum_in_order(const PeerView& v, const typename Vec<V>::Type& mine, Theirs theirs) {
  typename Vec<V>::Type sum = v.rank == 0 ? mine : theirs(0);
  for (int r = 1; r < v.ranks; ++r) add(sum, r == v.rank ? mine : theirs(r));
  return sum;
}

// x: `count` vectors.
template <int V>
__global__ void one_shot(const __grid_constant__ PeerView v, Rows x, int64_t count, bool round) {
  using T = typename Vec<V>::Type;
  Mailbox& own = v.own();
  const Turn turn = begin_turn(v, own.sum);
  if (turn.broken) return;
  const auto message = [&](int at, int from) { return reinterpret_cast<T*>(v.box[at]->sums[turn.slot][from]); };
  const Part part = part_of(count);
  for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x) {
    const T mine = *x.at<V>(i);
    for (int p = 0; p < v.ranks; ++p)
      if (p != v.rank) message(p, v.rank)[i] = mine;
  }
  tell_others(v, turn, [&](int p) { return &v.box[p]->sum_flag[turn.slot][v.rank][blockIdx.x]; });
  if (!await_others(v, turn, [&](int p) { return &own.sum_flag[turn.slot][p][blockIdx.x]; })) return;
  for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x) {
    const T sum = sum_in_order<V>(v, *x.at<V>(i), [&](int r) { return __ldcg(message(v.rank, r) + i); });
    *x.at<V>(i) = round ? rounded(sum) : sum;
  }
  end_turn(own.sum, turn);
}

// x: `count` vectors, in slices of `slice`; the last ones may be shorter, or empty.
template <int V>
__global__ void two_shot(const __grid_constant__ PeerView v, Rows x, int64_t count, int64_t slice, bool round) {
  using T = typename Vec<V>::Type;
  Mailbox& own = v.own();
  const Turn turn = begin_turn(v, own.slice);
  if (turn.broken) return;
  const Part part = part_of(slice);
  // f(i) for the block's part of rank p's slice
  const auto each = [&](int p, auto f) {
    for (int64_t i = part.begin + threadIdx.x; i < part.end && p * slice + i < count; i += blockDim.x) f(i);
  };
  const auto slices = [&](int at, int from) {
    return reinterpret_cast<T*>(v.box[at]->slices[turn.slot]) + from * slice;
  };
  const auto whole = [&](int at, int from) { return reinterpret_cast<T*>(v.box[at]->whole[turn.slot]) + from * slice; };
  for (int p = 0; p < v.ranks; ++p)
    if (p != v.rank) each(p, [&](int64_t i) { slices(p, v.rank)[i] = *x.at<V>(p * slice + i); });
  tell_others(v, turn, [&](int p) { return &v.box[p]->slice_flag[turn.slot][v.rank][blockIdx.x]; });
  if (!await_others(v, turn, [&](int p) { return &own.slice_flag[turn.slot][p][blockIdx.x]; })) return;
  each(v.rank, [&](int64_t i) {
    T* const place = x.at<V>(v.rank * slice + i);
    T sum = sum_in_order<V>(v, *place, [&](int r) { return __ldcg(slices(v.rank, r) + i); });
    if (round) sum = rounded(sum);
    *place = sum;
    for (int p = 0; p < v.ranks; ++p)
      if (p != v.rank) whole(p, v.rank)[i] = sum;
  });
  tell_others(v, turn, [&](int p) { return &v.box[p]->whole_flag[turn.slot][v.rank][blockIdx.x]; });
  if (!await_others(v, turn, [&](int p) { return &own.whole_flag[turn.slot][p][blockIdx.x]; })) return;
  for (int p = 0; p < v.ranks; ++p)
    if (p != v.rank) each(p, [&](int64_t i) { *x.at<V>(p * slice + i) = __ldcg(whole(v.rank, p) + i); });
  end_turn(own.slice, turn);
}

unsigned blocks_for(int64_t vectors) {
  return static_cast<unsigned>(std::clamp<int64_t>((vectors + kPeerThreads - 1) / kPeerThreads, 1, kPeerBlocks));
}
const PeerView& view_of(const AllReduceArgs& args) {
  const PeerMemory* link = args.comm->attached<PeerMemory>();
  PLUMB_CHECK(link != nullptr, "ranks are connected before they launch");
  return link->view();
}

void sum_whole(const AllReduceArgs& args, Stream& stream) {
  const Rows x = rows_of(args.x);
  const int64_t elements = args.x.elements();
  PLUMB_CHECK(elements * 4 <= kOneShotBytes, "a message of one-shot");
  const bool round = args.numerics.round_bf16;
  if (in_vectors(x))
    one_shot<4><<<blocks_for(elements / 4), kPeerThreads, 0, handle(stream)>>>(view_of(args), x, elements / 4, round);
  else
    one_shot<1><<<blocks_for(elements), kPeerThreads, 0, handle(stream)>>>(view_of(args), x, elements, round);
}

template <int V>
void sum_slices(const AllReduceArgs& args, const Rows& x, Stream& stream) {
  const PeerView& v = view_of(args);
  const int64_t all = args.x.elements() / V, piece = kPieceBytes / 4 / V;
  // A piece begins in the middle of a row, where there are no gaps between them; else pieces are rows.
  const int64_t step = x.ld == x.n ? piece : std::max<int64_t>(piece / (x.n / V), 1) * (x.n / V);
  PLUMB_CHECK(step <= piece, "a row is larger than a piece");
  for (int64_t begin = 0; begin < all; begin += step) {
    const int64_t count = std::min(step, all - begin), slice = (count + v.ranks - 1) / v.ranks;
    const Rows part{x.data + (x.ld == x.n ? begin * V : begin * V / x.n * x.ld), x.ld, x.n};
    two_shot<V>
        <<<blocks_for(slice), kPeerThreads, 0, handle(stream)>>>(v, part, count, slice, args.numerics.round_bf16);
  }
}

void sum_in_slices(const AllReduceArgs& args, Stream& stream) {
  const Rows x = rows_of(args.x);
  in_vectors(x) ? sum_slices<4>(args, x, stream) : sum_slices<1>(args, x, stream);
}

}  // namespace

void add_peer_sums(std::vector<Kernel>& out) {
  out.push_back(make_kernel<AllReduceArgs, sum_whole>(one_shot_contract()));
  out.push_back(make_kernel<AllReduceArgs, sum_in_slices>(two_shot_contract()));
  out[out.size() - 2].connect = out.back().connect = PeerMemory::connect;
}

}  // namespace plumb::cuda
