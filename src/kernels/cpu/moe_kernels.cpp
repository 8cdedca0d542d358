// The gated MLP, of one expert for all rows or of many for the rows routed to them (model.md 3.10).
//
// Rows are grouped by expert, so that each expert's weights stream once; every worker computes its own strips of every
// expert, so that one row with eight experts keeps all cores busy. A row's experts are added in ascending order of
// their number, whatever else is in the batch.
#include <cstring>
#include <string>

#include "base/check.h"
#include "kernels/cpu/product.h"
#include "tensor/encode.h"

namespace plumb::cpu {
namespace {

// Entries (a row at one of its experts) whose intermediates are held at once.
constexpr int64_t kBatchEntries = 1024;

struct Entry {
  int32_t expert = 0;
  int32_t row = 0;
  float weight = 1;
};

// Where the workspace's parts begin, for up to `entries` in all.
struct Scratch {
  Entry* entries = nullptr;       // [entries], by expert, row and slot
  int32_t* rows = nullptr;        // [entries]: their rows alone, as pack wants them
  std::byte* x = nullptr;         // [batch] packed rows of hidden
  float* h = nullptr;             // [batch, inter_ld]
  std::byte* h_packed = nullptr;  // [batch] packed rows of inter
  int64_t batch = 0;
  int64_t inter_ld = 0;
  size_t bytes = 0;

  Scratch(std::byte* base, int64_t count, int64_t hidden, int64_t inter) {
    batch = std::min(count, kBatchEntries);
    inter_ld = ceil_div(inter, kStrip) * kStrip;
    const auto take = [&](int64_t size) {
      std::byte* at = base == nullptr ? nullptr : base + bytes;
      bytes += static_cast<size_t>(ceil_div(size, 64) * 64);
      return at;
    };
    entries = reinterpret_cast<Entry*>(take(count * static_cast<int64_t>(sizeof(Entry))));
    rows = reinterpret_cast<int32_t*>(take(count * 4));
    x = take(batch * ceil_div(hidden, 4) * 16);
    h = reinterpret_cast<float*>(take(batch * inter_ld * 4));
    h_packed = take(batch * ceil_div(inter, 4) * 16);
  }
};

// What both ops come down to: `count` entries, sorted, times the experts' weights, added into y.
struct Job {
  const Tier& tier;
  std::span<const Weight> gate{}, up{}, down{};
  Tensor x{}, y{};
  const float* shared = nullptr;
  int64_t shared_ld = 0;
  bool weighted = false;  // Moe: y is a weighted sum; Mlp: y is the expert's output
  bool round = false;
  int count = 0;
};

// Entries [first, first + rows) of one expert, counted in the batch.
struct Run {
  int expert = 0;
  int first = 0;
  int rows = 0;
};

// f(Run) for every expert in entries [begin, end).
template <class F>
void for_runs(const Entry* entries, int begin, int end, F&& f) {
  for (int i = begin; i < end;) {
    int next = i + 1;
    while (next < end && entries[next].expert == entries[i].expert) ++next;
    f(Run{.expert = entries[i].expert, .first = i - begin, .rows = next - i});
    i = next;
  }
}

class Experts {
 public:
  Experts(const Job& job, const Scratch& scratch, Stream& stream) : job_(job), scratch_(scratch), stream_(stream) {}

  void run() {
    for (int begin = 0; begin < job_.count; begin += static_cast<int>(scratch_.batch)) {
      begin_ = begin;
      end_ = static_cast<int>(std::min<int64_t>(job_.count, begin + scratch_.batch));
      own_x_ = packs_small(job_.x.dim(1));
      own_h_ = packs_small(job_.down[0].k());
      if (!own_x_) pack_all([this](const Run& run) { return x_rows(run); }, scratch_.x);
      on_workers(stream_, [this](int worker, int workers) { gate_up(worker, workers); });
      if (!own_h_) pack_all([this](const Run& run) { return h_rows(run); }, scratch_.h_packed);
      on_workers(stream_, [this](int worker, int workers) { down(worker, workers); });
    }
  }

 private:
  Rows x_rows(const Run& run) const {
    return {.x = job_.x.f32(),
            .ld = job_.x.ld,
            .index = scratch_.rows + begin_ + run.first,
            .count = run.rows,
            .k = job_.x.dim(1)};
  }
  Rows h_rows(const Run& run) const {
    return {.x = scratch_.h + run.first * scratch_.inter_ld,
            .ld = scratch_.inter_ld,
            .count = run.rows,
            .k = job_.down[0].k()};
  }
  // Whether workers pack each expert's rows for themselves: few, and each expert's fit on the stack.
  bool packs_small(int64_t k) const {
    bool small = end_ - begin_ <= 32;
    for_runs(scratch_.entries, begin_, end_,
             [&](const Run& run) { small = small && run.rows * job_.tier.packed_row_bytes(k) <= kOwnPackBytes; });
    return small;
  }

  template <class RowsOf>
  void pack_all(RowsOf&& rows_of, std::byte* out) {
    on_workers(stream_, [&](int worker, int workers) {
      int tile = 0;
      for_runs(scratch_.entries, begin_, end_, [&](const Run& run) {
        const Rows rows = rows_of(run);
        for (int t = 0; t < tiles(run.rows); ++t, ++tile)
          if (tile % workers == worker)
            pack_tiles(job_.tier, rows, t, t + 1, out + run.first * job_.tier.packed_row_bytes(rows.k));
      });
    });
  }
  const std::byte* packed(const Rows& rows, const Run& run, bool own, std::byte* mine, const std::byte* all) const {
    if (!own) return all + run.first * job_.tier.packed_row_bytes(rows.k);
    pack_tiles(job_.tier, rows, 0, tiles(rows.count), mine);
    return mine;
  }

  void gate_up(int worker, int workers) const {
    alignas(64) std::byte mine[kOwnPackBytes];
    alignas(64) float gate_sums[kGroupFloats];
    alignas(64) float up_sums[kGroupFloats];
    for_runs(scratch_.entries, begin_, end_, [&](const Run& run) {
      const StripMatrix gate = strip_matrix(job_.gate[static_cast<size_t>(run.expert)]);
      const StripMatrix up = strip_matrix(job_.up[static_cast<size_t>(run.expert)]);
      const int width = job_.tier.group_strips(gate.coding, run.rows);
      const Range range = split_strips(gate.strips, width, worker, workers);
      if (range.begin >= range.end) return;
      const std::byte* x = packed(x_rows(run), run, own_x_, mine, scratch_.x);
      for (int64_t s = range.begin; s < range.end; s += width) {
        const int strips = static_cast<int>(std::min<int64_t>(width, range.end - s));
        for (int c = 0; c < chunks(run.rows); ++c) {
          const GroupCall call{.w = gate, .packed = x, .rows = run.rows, .strip = s, .strips = strips};
          const GroupResult g = run_chunk(job_.tier, call, c, gate_sums);
          const GroupCall up_call{.w = up, .packed = x, .rows = run.rows, .strip = s, .strips = strips};
          run_chunk(job_.tier, up_call, c, up_sums);
          for (int r = 0; r < g.rows; ++r)
            job_.tier.gate({.gate = gate_sums + r * g.ld,
                            .up = up_sums + r * g.ld,
                            .h = scratch_.h + (run.first + g.row0 + r) * scratch_.inter_ld + g.n0,
                            .n = g.ld,
                            .round = job_.round});
        }
      }
    });
  }

  void down(int worker, int workers) const {
    alignas(64) std::byte mine[kOwnPackBytes];
    const int64_t strips = ceil_div(job_.y.dim(1), kStrip);
    // The same columns for every expert and batch: a worker adds to what it wrote itself.
    const Range range = split_strips(strips, kGroupStrips, worker, workers);
    if (range.begin >= range.end) return;
    if (job_.weighted && begin_ == 0) clear(range);
    for_runs(scratch_.entries, begin_, end_, [&](const Run& run) {
      const StripMatrix w = strip_matrix(job_.down[static_cast<size_t>(run.expert)]);
      const std::byte* h = packed(h_rows(run), run, own_h_, mine, scratch_.h_packed);
      product(job_.tier, w, range, h, run.rows, [&](const GroupResult& result) { add(run, result); });
    });
    if (job_.weighted && end_ == job_.count) finish(range);
  }

  void add(const Run& run, const GroupResult& result) const {
    for (int r = 0; r < result.rows; ++r) {
      const Entry& entry = scratch_.entries[begin_ + run.first + result.row0 + r];
      const float* from = result.values + r * result.ld;
      float* y = job_.y.row_f32(entry.row) + result.n0;
      for (int i = 0; i < result.outputs; ++i) {
        const float output = job_.round ? round_bf16(from[i]) : from[i];
        y[i] = job_.weighted ? y[i] + entry.weight * output : output;
      }
    }
  }

  int64_t columns_begin(const Range& range) const { return range.begin * kStrip; }
  int64_t columns_end(const Range& range) const { return std::min(range.end * kStrip, job_.y.dim(1)); }
  void clear(const Range& range) const {
    for (int64_t t = 0; t < job_.y.dim(0); ++t)
      std::fill(job_.y.row_f32(t) + columns_begin(range), job_.y.row_f32(t) + columns_end(range), 0.0f);
  }
  // The weighted sum is rounded before the shared expert is added, where rounding is asked for (model.md 3.10).
  void finish(const Range& range) const {
    for (int64_t t = 0; t < job_.y.dim(0); ++t) {
      float* y = job_.y.row_f32(t);
      for (int64_t i = columns_begin(range); i < columns_end(range); ++i) {
        if (job_.round) y[i] = round_bf16(y[i]);
        if (job_.shared != nullptr) y[i] += job_.shared[t * job_.shared_ld + i];
        if (job_.round) y[i] = round_bf16(y[i]);
      }
    }
  }

  const Job& job_;
  const Scratch& scratch_;
  Stream& stream_;
  int begin_ = 0, end_ = 0;  // entries of this batch
  bool own_x_ = false, own_h_ = false;
};

void mlp(const Tier& tier, const MlpArgs& args, Stream& stream) {
  const int count = static_cast<int>(args.x.dim(0));
  const Scratch scratch(stream.workspace, count, args.x.dim(1), args.gate->n());
  PLUMB_CHECK(scratch.bytes <= stream.workspace_bytes, "workspace of an MLP");
  for (int t = 0; t < count; ++t) {
    scratch.entries[t] = {.expert = 0, .row = t};
    scratch.rows[t] = t;
  }
  const Job job{.tier = tier,
                .gate = {args.gate, 1},
                .up = {args.up, 1},
                .down = {args.down, 1},
                .x = args.x,
                .y = args.y,
                .round = args.numerics.round_bf16,
                .count = count};
  Experts(job, scratch, stream).run();
}

// The rows' choices by expert, then row, then slot. Returns how many.
int sort_entries(const MoeArgs& args, const Scratch& scratch) {
  int count = 0;
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    for (int64_t slot = 0; slot < args.experts.dim(1); ++slot) {
      const int32_t expert = args.experts.row_i32(t)[slot] - args.first_expert;
      if (expert < 0 || expert >= static_cast<int64_t>(args.gate.size())) continue;
      scratch.entries[count++] = {
          .expert = expert, .row = static_cast<int32_t>(t), .weight = args.weights.row_f32(t)[slot]};
    }
  }
  // Entries stand by row and slot already; a heap sort is not stable, so an entry's old place is a key as well.
  for (int i = 0; i < count; ++i) scratch.rows[i] = i;
  std::sort(scratch.rows, scratch.rows + count, [&](int32_t a, int32_t b) {
    const int32_t left = scratch.entries[a].expert, right = scratch.entries[b].expert;
    return left != right ? left < right : a < b;
  });
  return count;
}

// Moves entries to the places that scratch.rows has for them, cycle by cycle, then writes their rows there.
void apply_order(const Scratch& scratch, int count) {
  for (int i = 0; i < count; ++i) {
    if (scratch.rows[i] < 0) continue;
    const Entry first = scratch.entries[i];
    int at = i;
    while (true) {
      const int from = scratch.rows[at];
      scratch.rows[at] = -1;
      if (from == i) break;
      scratch.entries[at] = scratch.entries[from];
      at = from;
    }
    scratch.entries[at] = first;
  }
  for (int i = 0; i < count; ++i) scratch.rows[i] = scratch.entries[i].row;
}

// Rows without any expert get the shared part alone.
void no_entries(const MoeArgs& args) {
  for (int64_t t = 0; t < args.y.dim(0); ++t) {
    for (int64_t i = 0; i < args.y.dim(1); ++i) {
      const float value = args.shared.data != nullptr ? args.shared.row_f32(t)[i] : 0.0f;
      args.y.row_f32(t)[i] = args.numerics.round_bf16 ? round_bf16(value) : value;
    }
  }
}

void moe(const Tier& tier, const MoeArgs& args, Stream& stream) {
  const Scratch scratch(stream.workspace, args.experts.dim(0) * args.experts.dim(1), args.x.dim(1), args.gate[0].n());
  PLUMB_CHECK(scratch.bytes <= stream.workspace_bytes, "workspace of a mixture of experts");
  const int count = sort_entries(args, scratch);
  if (count == 0) return no_entries(args);
  apply_order(scratch, count);
  const bool shared = args.shared.data != nullptr;
  const Job job{.tier = tier,
                .gate = args.gate,
                .up = args.up,
                .down = args.down,
                .x = args.x,
                .y = args.y,
                .shared = shared ? args.shared.f32() : nullptr,
                .shared_ld = shared ? args.shared.ld : 0,
                .weighted = true,
                .round = args.numerics.round_bf16,
                .count = count};
  Experts(job, scratch, stream).run();
}

size_t mlp_workspace(const Call& call) { return Scratch(nullptr, call.m_hi, call.k, call.n).bytes; }
size_t moe_workspace(const Call& call) { return Scratch(nullptr, call.m_hi * call.topk, call.k, call.n).bytes; }

template <const Tier& tier>
void mlp_on(const MlpArgs& args, Stream& stream) {
  mlp(tier, args, stream);
}
template <const Tier& tier>
void moe_on(const MoeArgs& args, Stream& stream) {
  moe(tier, args, stream);
}

template <const Tier& tier>
void add_moe(std::vector<Kernel>& out, Isa isa) {
  for (const Family& family : families(isa)) {
    const std::string tail = std::string(".") + family.name + ".strip16." + to_string(isa);
    for (const Op op : {Op::Mlp, Op::Moe}) {
      Contract contract = strip_contract(op, family, isa);
      contract.name = to_string(op) + tail;
      contract.workspace = op == Op::Mlp ? mlp_workspace : moe_workspace;
      out.push_back(op == Op::Mlp ? make_kernel<MlpArgs, mlp_on<tier>>(std::move(contract))
                                  : make_kernel<MoeArgs, moe_on<tier>>(std::move(contract)));
    }
  }
}

}  // namespace

std::vector<Kernel> moe_kernels() {
  std::vector<Kernel> kernels;
  add_moe<kTierGeneric>(kernels, Isa::Generic);
#if defined(__x86_64__)
  add_moe<kTierAvx2>(kernels, Isa::Avx2);
  add_moe<kTierAvx512>(kernels, Isa::Avx512);
  add_moe<kTierAvx512Bf16>(kernels, Isa::Avx512Bf16);
#endif
  return kernels;
}

}  // namespace plumb::cpu
