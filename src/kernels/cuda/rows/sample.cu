// The sampler on the device, one block a row; the order of a row's steps is the definition's (kernels/reference).
//
// Weights are integers, 2^44 for the most likely token, so that their sums do not depend on the order of additions: a
// draw is the same in every batch and every time. What is less likely than 2^-46 of that counts as nothing.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/cuda_device.h"
#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/rows/row_kernels.h"
#include "ops/philox.h"

namespace plumb::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr double kUnit = 17592186044416.0;  // 2^44
constexpr int kSmallest = -46;
constexpr int kUsualAdjustments = 4096;  // of a row, that the workspace has room for in every row at once

using Mass = unsigned long long;

struct Row {
  double uniform;
  float temperature, top_p, min_p;
  int top_k, logprobs;
  int adjust_begin, adjust_count, forbidden_begin, forbidden_count, allowed_begin, allowed_words;
};
struct Lists {
  const int32_t* adjust_ids;
  const float* adjust_factor;
  const float* adjust_add;
  float* untouched;  // logits before adjusting, for each adjustment
  const int32_t* forbidden;
  const uint32_t* allowed;  // a bit for each id; a row without words allows all
};

// By descending logit, then ascending id.
struct Place {
  uint32_t key = 0;
  int32_t id = INT32_MAX;
  __device__ bool before(const Place& other) const { return key > other.key || (key == other.key && id < other.id); }
};

__device__ uint32_t key_of(float logit) {
  const uint32_t bits = f32_to_bits(logit == 0.0f ? 0.0f : logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Shared {
  Mass histogram[kBins];
  Mass warp_mass[kWarps];
  double warp_sum[kWarps];
  Place warp_place[kWarps];
  float warp_low[kWarps];
  int warp_count[kWarps];
  int bin;
  Mass before, within;  // mass above the bin, and in it
  int32_t id;
};

__device__ Place first_of_block(Place mine, Shared& s) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const Place other{__shfl_xor_sync(~0u, mine.key, offset), __shfl_xor_sync(~0u, mine.id, offset)};
    if (other.before(mine)) mine = other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.warp_place[threadIdx.x / 32] = mine;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w)
    if (s.warp_place[w].before(mine)) mine = s.warp_place[w];
  return mine;
}

__device__ Mass sum_of_block(Mass mine, Shared& s) {
  for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0u, mine, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.warp_mass[threadIdx.x / 32] = mine;
  __syncthreads();
  Mass total = 0;
  for (int w = 0; w < kWarps; ++w) total += s.warp_mass[w];
  return total;
}

// f(i, logit) for i = begin, begin + step ... below end, with kBatch loads under way.
constexpr int kBatch = 8;
template <class F>
__device__ void sweep(const float* logits, int begin, int end, int step, F f) {
  for (int first = begin; first < end; first += step * kBatch) {
    float x[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + step * i < end) x[i] = logits[first + step * i];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + step * i < end) f(first + step * i, x[i]);
  }
}
template <class F>
__device__ void sweep(const float* logits, int vocab, F f) {
  sweep(logits, static_cast<int>(threadIdx.x), vocab, kThreads, f);
}

struct Scan {
  Place best{};
  float low = INFINITY;  // smallest that is no -inf
  bool poisoned = false;
};
__device__ Scan scan_row(const float* logits, int vocab, Shared& s) {
  Scan out;
  bool bad = false;
  sweep(logits, vocab, [&](int i, float x) {
    bad |= !(x < INFINITY);
    const Place here{key_of(x), i};
    if (here.before(out.best)) out.best = here;
    if (x > -INFINITY) out.low = fminf(out.low, x);
  });
  for (int offset = 16; offset > 0; offset /= 2) out.low = fminf(out.low, __shfl_xor_sync(~0u, out.low, offset));
  if (threadIdx.x % 32 == 0) s.warp_low[threadIdx.x / 32] = out.low;
  out.best = first_of_block(out.best, s);
  for (int w = 0; w < kWarps; ++w) out.low = fminf(out.low, s.warp_low[w]);
  out.poisoned = __syncthreads_or(bad) != 0 || out.low == INFINITY;
  return out;
}

// exp((x - largest) / temperature) as a Mass.
struct Weigh {
  double largest, per_unit;  // log2 e / temperature
  __device__ Mass operator()(float x) const {
    const double at = (static_cast<double>(x) - largest) * per_unit;
    if (!(at > kSmallest)) return 0;
    const double whole = rint(at);
    const auto mass = static_cast<Mass>(static_cast<double>(exp2f(static_cast<float>(at - whole))) * kUnit);
    return whole > 0 ? mass << 1 : mass >> -static_cast<int>(whole);
  }
};

// Monotonous in x; the whole of what has weight, spread over the bins.
struct Bins {
  float low, scale;
  __device__ int operator()(float x) const {
    const float at = (x - low) * scale;
    return at >= kBins - 1 ? kBins - 1 : at > 0 ? static_cast<int>(at) : 0;
  }
};

// Walks from the highest bin down to the one in which `goal` is reached: before < goal <= before + mass. The lowest
// that holds anything when it never is.
__device__ void find_bin(int bins, Mass before, Mass goal, Shared& s) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int each = bins > kThreads ? bins / kThreads : 1;
  const int top = bins - 1 - tid * each;  // this thread's highest bin
  Mass mine = 0;
  for (int i = 0; i < each; ++i)
    if (top - i >= 0) mine += s.histogram[top - i];
  Mass sum = mine;
  for (int offset = 1; offset < 32; offset *= 2) {
    const Mass above = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += above;
  }
  if (lane == 31) s.warp_mass[warp] = sum;
  if (tid == 0) s.bin = -1;
  __syncthreads();
  for (int w = 0; w < warp; ++w) before += s.warp_mass[w];
  before += sum - mine;
  const auto found = [&](int bin) { s.bin = bin, s.before = before, s.within = s.histogram[bin]; };
  if (before < goal && goal <= before + mine) {
    int bin = top;
    while (before + s.histogram[bin] < goal) before += s.histogram[bin--];
    found(bin);
  }
  __syncthreads();
  if (s.bin < 0 && tid == 0) {
    int bin = 0;
    while (bin < bins - 1 && s.histogram[bin] == 0) ++bin;
    before = 0;
    for (int w = 0; w < kWarps; ++w) before += s.warp_mass[w];
    before -= s.histogram[bin];
    found(bin);
  }
  __syncthreads();
}

// The last place, by descending logit and ascending id, before which less than `goal` lies: what sum(x) gives, summed
// over the places before it that `in` admits.
template <class In, class Sum>
__device__ Place find_cut(const float* logits, int vocab, const Bins& bins, Mass goal, Shared& s, In in, Sum sum) {
  const auto count_bins = [&](int count, auto digit) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) s.histogram[i] = 0;
    __syncthreads();
    sweep(logits, vocab, [&](int i, float x) {
      const int to = digit(x);
      if (to < 0 || !in(Place{key_of(x), i})) return;
      const Mass mass = sum(x);
      if (mass > 0) atomicAdd(&s.histogram[to], mass);
    });
    __syncthreads();
  };
  count_bins(kBins, [&](float x) { return bins(x); });
  find_bin(kBins, 0, goal, s);
  const int bin = s.bin;
  Mass before = s.before;
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    count_bins(256, [&](float x) {
      if (bins(x) != bin) return -1;
      const uint32_t key = key_of(x);
      return shift == 24 || key >> (shift + 8) == prefix >> (shift + 8) ? static_cast<int>(key >> shift & 255u) : -1;
    });
    find_bin(256, before, goal, s);
    before = s.before;
    prefix |= static_cast<uint32_t>(s.bin) << shift;
  }
  // Equal logits, each of the same mass: the first so many of them.
  const Mass within = s.within;
  const uint32_t key = prefix;
  __syncthreads();
  int32_t first = INT32_MAX;
  sweep(logits, vocab, [&](int i, float x) {
    if (key_of(x) == key && in(Place{key, i})) first = min(first, i);
  });
  first = first_of_block(Place{1, first}, s).id;
  const Mass each = first == INT32_MAX ? 1 : max(sum(logits[first]), Mass{1});
  const Mass wanted = goal > before ? (goal - before + each - 1) / each : 1;
  if (wanted * each >= within) return {key, INT32_MAX - 1};
  if (wanted <= 1) return {key, first};
  Mass seen = 0;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int begin = 0; begin < vocab; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const bool same = i < vocab && key_of(logits[i]) == key && in(Place{key, i});
    const unsigned peers = __ballot_sync(~0u, same);
    if (lane == 0) s.warp_count[warp] = __popc(peers);
    __syncthreads();
    Mass rank = seen + static_cast<Mass>(__popc(peers & ((1u << lane) - 1)));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) rank += static_cast<Mass>(s.warp_count[w]);
      seen += static_cast<Mass>(s.warp_count[w]);
    }
    if (same && rank + 1 == wanted) s.id = i;
    __syncthreads();
    if (seen >= wanted) break;
  }
  return {key, s.id};
}

// The first id, ascending, at which the running mass of what is kept exceeds `target`.
template <class Kept>
__device__ int32_t draw(const float* logits, int vocab, double uniform, Shared& s, int32_t otherwise, Kept kept) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int share = (vocab + kWarps * 32 - 1) / (kWarps * 32) * 32;
  const int begin = warp * share, end = min(vocab, begin + share);
  Mass mine = 0;
  sweep(logits, begin + lane, end, 32, [&](int i, float x) { mine += kept(i, x); });
  for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0u, mine, offset);
  __syncthreads();
  if (lane == 0) s.warp_mass[warp] = mine;
  if (threadIdx.x == 0) s.id = otherwise;
  __syncthreads();
  Mass total = 0, before = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += s.warp_mass[w];
    total += s.warp_mass[w];
  }
  const auto target = static_cast<Mass>(uniform * static_cast<double>(total));
  if (before <= target && target < before + mine) {
    for (int i = begin; i < end; i += 32) {
      const int own = i + lane;
      Mass sum = own < end ? kept(own, logits[own]) : 0;
      for (int offset = 1; offset < 32; offset *= 2) {
        const Mass below = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += below;
      }
      const unsigned past = __ballot_sync(~0u, before + sum > target);
      if (past != 0) {
        if (lane == 0) s.id = i + __ffs(static_cast<int>(past)) - 1;
        break;
      }
      before += __shfl_sync(~0u, sum, 31);
    }
  }
  __syncthreads();
  return s.id;
}

// Entries of one id in their order, by the thread of the first.
__device__ void adjust(float* logits, int vocab, const Row& row, const Lists& lists) {
  const int32_t* ids = lists.adjust_ids + row.adjust_begin;
  for (int i = static_cast<int>(threadIdx.x); i < row.adjust_count; i += kThreads) {
    const int32_t id = ids[i];
    if (id < 0 || id >= vocab) continue;
    bool earlier = false;
    for (int o = 0; o < i && !earlier; ++o) earlier = ids[o] == id;
    if (earlier) continue;
    float x = logits[id];
    lists.untouched[row.adjust_begin + i] = x;
    for (int o = i; o < row.adjust_count; ++o) {
      if (ids[o] != id) continue;
      const float factor = lists.adjust_factor[row.adjust_begin + o];
      x = (x > 0 ? x / factor : x * factor) + lists.adjust_add[row.adjust_begin + o];
    }
    logits[id] = x;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < row.forbidden_count; i += kThreads) {
    const int32_t id = lists.forbidden[row.forbidden_begin + i];
    if (id >= 0 && id < vocab) logits[id] = -INFINITY;
  }
  const uint32_t* allowed = lists.allowed + row.allowed_begin;
  for (int i = static_cast<int>(threadIdx.x); i < vocab && row.allowed_words > 0; i += kThreads) {
    if (i / 32 >= row.allowed_words || (allowed[i / 32] >> (i % 32) & 1u) == 0) logits[i] = -INFINITY;
  }
  __syncthreads();
}

__device__ double log_sum_exp(const float* logits, int vocab, float largest, Shared& s) {
  double sum = 0;
  sweep(logits, vocab, [&](int, float x) { sum += static_cast<double>(exp2f((x - largest) * 1.4426950408889634f)); });
  return log(block_sum(sum, s.warp_sum));
}

__global__ void __launch_bounds__(kThreads, 1)
    sample_rows(float* all_logits, int64_t ld, int vocab, const Row* rows, Lists lists, SampleOut* outs) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const Row row = rows[blockIdx.x];
  float* logits = all_logits + static_cast<int64_t>(blockIdx.x) * ld;
  SampleOut& out = outs[blockIdx.x];
  const int tid = static_cast<int>(threadIdx.x);
  if (tid == 0) out = SampleOut{};
  Scan scan = scan_row(logits, vocab, s);
  if (scan.poisoned) {
    if (tid == 0) out.poisoned = true;
    return;
  }
  const float untouched_largest = logits[scan.best.id];
  double log_sum = 0;
  const auto logprob = [&](float x) {
    return static_cast<float>(fmax(static_cast<double>(x) - static_cast<double>(untouched_largest) - log_sum, -9999.0));
  };
  if (row.logprobs >= 0) {
    log_sum = log_sum_exp(logits, vocab, untouched_largest, s);
    Place last{UINT32_MAX, -1};
    for (int i = 0; i < min(min(row.logprobs, vocab), 20); ++i) {
      Place next;
      sweep(logits, vocab, [&](int j, float x) {
        const Place here{key_of(x), j};
        if (last.before(here) && here.before(next)) next = here;
      });
      last = first_of_block(next, s);
      if (tid == 0) out.top_ids[i] = last.id, out.top_logprobs[i] = logprob(logits[last.id]);
    }
    __syncthreads();  // before logits change
  }
  if (row.adjust_count + row.forbidden_count + row.allowed_words > 0) {
    adjust(logits, vocab, row, lists);
    scan = scan_row(logits, vocab, s);
    if (scan.poisoned) {
      __syncthreads();
      if (tid == 0) out = SampleOut{}, out.poisoned = true;
      return;
    }
  }
  int32_t id = scan.best.id;
  if (row.temperature > 0) {
    const float largest = logits[id];
    const Weigh weigh{static_cast<double>(largest), 1.4426950408889634 / static_cast<double>(row.temperature)};
    const double reach = static_cast<double>(largest) + kSmallest / weigh.per_unit;
    const float low = reach > static_cast<double>(scan.low) ? static_cast<float>(reach) : scan.low;
    const float width = largest - low;
    const Bins bins{low, width > 0 && width < INFINITY ? (kBins - 1) / width : 0.0f};
    Place cut{0, INT32_MAX - 1};  // the last that is kept
    const auto inside = [&](const Place& p) { return !cut.before(p); };
    if (row.top_k > 0 && row.top_k < vocab)
      cut = find_cut(logits, vocab, bins, static_cast<Mass>(row.top_k), s, inside, [](float) { return Mass{1}; });
    if (row.top_p < 1.0f) {
      Mass mine = 0;
      sweep(logits, vocab, [&](int i, float x) {
        if (inside(Place{key_of(x), i})) mine += weigh(x);
      });
      const Mass all = sum_of_block(mine, s);
      const double share = ceil(static_cast<double>(row.top_p) * static_cast<double>(all));
      const Place last =
          find_cut(logits, vocab, bins, max(static_cast<Mass>(share > 0 ? share : 0), Mass{1}), s, inside, weigh);
      if (last.before(cut)) cut = last;
    }
    const double least = static_cast<double>(row.min_p) * kUnit;
    id = draw(logits, vocab, row.uniform, s, scan.best.id, [&](int i, float x) {
      if (!inside(Place{key_of(x), i})) return Mass{0};
      const Mass mass = weigh(x);
      return static_cast<double>(mass) >= least || i == scan.best.id ? mass : Mass{0};
    });
  }
  if (tid != 0) return;
  out.id = id;
  if (row.logprobs < 0) return;
  float untouched = logits[id];
  for (int i = 0; i < row.adjust_count; ++i)
    if (lists.adjust_ids[row.adjust_begin + i] == id) {
      untouched = lists.untouched[row.adjust_begin + i];
      break;
    }
  out.logprob = logprob(untouched);
}

int64_t list_entries(int64_t rows, int64_t vocab) { return std::max(rows * kUsualAdjustments, 2 * vocab); }
// Rows, outputs, then six lists.
size_t workspace_bytes(int64_t rows, int64_t vocab) {
  return static_cast<size_t>(aligned(rows * static_cast<int64_t>(sizeof(Row))) +
                             aligned(rows * static_cast<int64_t>(sizeof(SampleOut))) +
                             6 * aligned(list_entries(rows, vocab) * 4));
}
size_t workspace(const Call& c) { return workspace_bytes(c.m_hi, c.k); }

struct Packed {
  std::vector<Row> rows{};
  std::vector<int32_t> adjust_ids{}, forbidden{};
  std::vector<float> adjust_factor{}, adjust_add{};
  std::vector<uint32_t> allowed{};

  void add(const SampleRow& r) {
    rows.push_back({.uniform = philox_uniform(r.seed, r.position),
                    .temperature = r.temperature,
                    .top_p = r.top_p,
                    .min_p = r.min_p,
                    .top_k = r.top_k,
                    .logprobs = r.logprobs,
                    .adjust_begin = static_cast<int>(adjust_ids.size()),
                    .adjust_count = static_cast<int>(r.adjust_ids.size()),
                    .forbidden_begin = static_cast<int>(forbidden.size()),
                    .forbidden_count = static_cast<int>(r.forbidden.size()),
                    .allowed_begin = static_cast<int>(allowed.size()),
                    .allowed_words = static_cast<int>(r.allowed.size())});
    adjust_ids.insert(adjust_ids.end(), r.adjust_ids.begin(), r.adjust_ids.end());
    adjust_factor.insert(adjust_factor.end(), r.adjust_factor.begin(), r.adjust_factor.end());
    adjust_add.insert(adjust_add.end(), r.adjust_add.begin(), r.adjust_add.end());
    forbidden.insert(forbidden.end(), r.forbidden.begin(), r.forbidden.end());
    allowed.insert(allowed.end(), r.allowed.begin(), r.allowed.end());
  }
};

// Rows [first, first + packed) in one launch.
void launch(const SampleArgs& args, size_t first, const Packed& packed, std::byte* at, int64_t room, Stream& s) {
  const auto put = [&](const auto& list, int64_t bytes) {
    std::byte* piece = at;
    at += aligned(bytes);
    if (!list.empty())
      require_cuda(
          cudaMemcpyAsync(piece, list.data(), list.size() * sizeof(list[0]), cudaMemcpyHostToDevice, handle(s)),
          "the sampler's parameters");
    return piece;
  };
  const auto rows = static_cast<int64_t>(packed.rows.size());
  const auto* device_rows = reinterpret_cast<const Row*>(put(packed.rows, rows * static_cast<int64_t>(sizeof(Row))));
  auto* outs = reinterpret_cast<SampleOut*>(at);
  at += aligned(rows * static_cast<int64_t>(sizeof(SampleOut)));
  Lists lists{};
  lists.adjust_ids = reinterpret_cast<const int32_t*>(put(packed.adjust_ids, room * 4));
  lists.adjust_factor = reinterpret_cast<const float*>(put(packed.adjust_factor, room * 4));
  lists.adjust_add = reinterpret_cast<const float*>(put(packed.adjust_add, room * 4));
  lists.forbidden = reinterpret_cast<const int32_t*>(put(packed.forbidden, room * 4));
  lists.allowed = reinterpret_cast<const uint32_t*>(put(packed.allowed, room * 4));
  lists.untouched = reinterpret_cast<float*>(at);
  sample_rows<<<static_cast<unsigned>(rows), kThreads, sizeof(Shared), handle(s)>>>(
      args.logits.row_f32(static_cast<int64_t>(first)), args.logits.ld, args.vocab, device_rows, lists, outs);
  require_cuda(cudaGetLastError(), "the sampler");
  require_cuda(cudaMemcpyAsync(args.out.data() + first, outs, static_cast<size_t>(rows) * sizeof(SampleOut),
                               cudaMemcpyDeviceToHost, handle(s)),
               "the sampler's results");
  require_cuda(cudaStreamSynchronize(handle(s)), "a step on the device");
}

void sample(const SampleArgs& args, Stream& s) {
  const auto count = static_cast<int64_t>(args.rows.size());
  const int64_t room = list_entries(count, args.vocab);
  PLUMB_CHECK(s.workspace_bytes >= workspace_bytes(count, args.vocab), "workspace too small");
  for (size_t first = 0; first < args.rows.size();) {
    Packed packed;
    size_t end = first;
    const auto fits = [&](const SampleRow& r) {
      return static_cast<int64_t>(packed.adjust_ids.size() + r.adjust_ids.size()) <= room &&
             static_cast<int64_t>(packed.forbidden.size() + r.forbidden.size()) <= room &&
             static_cast<int64_t>(packed.allowed.size() + r.allowed.size()) <= room;
    };
    while (end < args.rows.size() && fits(args.rows[end])) packed.add(args.rows[end++]);
    PLUMB_CHECK(end > first, "a row has more adjustments than twice its vocabulary");
    launch(args, first, packed, s.workspace, room, s);
    first = end;
  }
}

}  // namespace

void add_sample_kernels(std::vector<Kernel>& out) {
  Contract c = row_contract(Op::Sample, "block");
  c.workspace = workspace;
  out.push_back(make_kernel<SampleArgs, sample>(std::move(c)));
}

}  // namespace plumb::cuda
