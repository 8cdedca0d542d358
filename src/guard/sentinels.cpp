#include "guard/sentinels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/thread_pool.h"
#include "ops/kv_rows.h"

namespace plumb {
namespace {

constexpr uint32_t kExponent = 0x7f800000u;

// An exponent of all ones carries into the sign bit when one more is added to it.
bool any_not_finite(const float* x, int64_t n) {
  uint32_t carry = 0;
  for (int64_t i = 0; i < n; ++i) carry |= (std::bit_cast<uint32_t>(x[i]) & kExponent) + 0x00800000u;
  return (carry & 0x80000000u) != 0;
}

// Work below this many bytes isn't worth waking the workers for.
constexpr int64_t kParallelBytes = int64_t{1} << 19;

template <class F>
void for_rows(const Stream& stream, int64_t rows, int64_t row_bytes, F f) {
  if (stream.pool == nullptr || rows < 2 || rows * row_bytes < kParallelBytes) {
    for (int64_t r = 0; r < rows; ++r) f(r);
    return;
  }
  stream.pool->parallel([&](int worker, int workers) {
    const Range range = split(rows, worker, workers);
    for (int64_t r = range.begin; r < range.end; ++r) f(r);
  });
}

// The tensor that the op changes in place; nullptr: none, or none worth keeping (the sampler's logits).
const Tensor* changed_in_place(const AnyArgs& args) {
  return std::visit(
      [](const auto& a) -> const Tensor* {
        using Args = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<Args, AddRmsNormArgs>) return &a.residual;
        if constexpr (std::is_same_v<Args, RopeArgs>) return &a.x;
        if constexpr (std::is_same_v<Args, RmsNormArgs>) return a.x.data == a.y.data ? &a.x : nullptr;
        if constexpr (std::is_same_v<Args, IndexQueryArgs>) return &a.q;
        if constexpr (std::is_same_v<Args, IndexKeyWriteArgs>) return &a.k;
        return nullptr;
      },
      args);
}

}  // namespace

Sentinels::Sentinels(int max_rows, bool keep_inputs)
    : keep_inputs_(keep_inputs), seen_(static_cast<size_t>(max_rows)), bad_(static_cast<size_t>(max_rows)) {}

void Sentinels::begin_step() {
  pass_ = -1;
  faults_.clear();
  records_.clear();
}

void Sentinels::begin_pass(const Paging& rows) {
  ++pass_;
  rows_ = rows;
  PLUMB_CHECK(static_cast<size_t>(rows.rows) <= seen_.size(), "a pass has more rows than the sentinels were made for");
  std::fill_n(seen_.begin(), rows.rows, uint8_t{0});
}

bool Sentinels::add(int32_t row, SiteId site, const Plan& plan, int64_t rows) {
  if (row >= rows_.rows || rows_.sequence[row] < 0) return false;
  faults_.push_back({.pass = pass_,
                     .row = row,
                     .sequence = rows_.sequence[row],
                     .position = rows_.positions[row],
                     .site = site,
                     .kernel = &plan.kernel(site, rows),
                     .tensor = "an output"});
  return true;
}

void Sentinels::watch_again(Executor& executor, const std::function<void()>& run) {
  const std::vector<RowFault> before = std::exchange(faults_, {});
  begin_step();
  executor.add_observer(*this);
  run();
  executor.remove_observer(*this);
  for (const RowFault& fault : before) {
    if (std::ranges::find(faults_, fault.row, &RowFault::row) != faults_.end()) continue;
    faults_.push_back(fault);
    faults_.back().repeated = false;
  }
}

void Sentinels::before(const OpCall& call, Executor& executor) {
  changed_at_ = nullptr;
  if (!keep_inputs_) return;
  const AnyArgs args = any_args(call.kernel.contract.op, call.args);
  const Tensor* live = changed_in_place(args);
  if (live == nullptr) return;
  changed_at_ = live->data;
  changed_ = *live;
  changed_.ld = live->elements() / live->dim(0);
  if (live->where != Where::Host) {
    changed_ = executor.to_host(*live, saved_);
    return;
  }
  if (saved_.size() < static_cast<size_t>(live->bytes())) saved_.resize(static_cast<size_t>(live->bytes()));
  changed_.data = saved_.data();
  const size_t row_bytes = static_cast<size_t>(changed_.ld) * 4;
  for_rows(executor.stream(), live->dim(0), changed_.ld * 4,
           [&](int64_t r) { std::memcpy(changed_.row_f32(r), live->row_f32(r), row_bytes); });
}

void Sentinels::after(const OpCall& call, Executor& executor) {
  const Op op = call.kernel.contract.op;
  if (op == Op::Sample || op == Op::TopK || op == Op::FiniteRows || op == Op::DraftSet) return;
  AnyArgs args = any_args(op, call.args);
  for_tensors(args, [&](const char* name, const Tensor& tensor, Role role) {
    if (role != Role::In && tensor.dtype == DType::F32) look(call, executor, name, tensor);
  });
  if (op == Op::KvWrite) look_at_latent(call, executor);
  if (op == Op::IndexKeyWrite) look_at_index_keys(call, executor);
}

// Columns of an op's row that hold values: none of a padding row; scores beyond the row's own position are -inf by
// definition.
int64_t Sentinels::columns_of(const OpCall& call, const Tensor& tensor, int64_t r) const {
  const int32_t row = call.origin.row(r);
  if (row < 0 || row >= rows_.rows) return 0;
  return call.kernel.contract.op != Op::IndexerLogits ? tensor.dim(1)
                                                      : std::min<int64_t>(rows_.positions[row] + 1, tensor.dim(1));
}

void Sentinels::look(const OpCall& call, Executor& executor, const char* name, const Tensor& live) {
  const Tensor tensor = executor.to_host(live, seen_values_);
  for_rows(executor.stream(), tensor.dim(0), tensor.dim(1) * 4, [&](int64_t r) {
    bad_[static_cast<size_t>(r)] = any_not_finite(tensor.row_f32(r), columns_of(call, tensor, r)) ? 1 : 0;
  });
  for (int64_t r = 0; r < tensor.dim(0); ++r) {
    if (bad_[static_cast<size_t>(r)] == 0) continue;
    const float* x = tensor.row_f32(r);
    const auto* bad = std::find_if(x, x + columns_of(call, tensor, r), [](float v) { return !std::isfinite(v); });
    found(call, executor, r, name, bad - x, std::isinf(*bad));
  }
}

const std::byte* Sentinels::home(Executor& executor, const std::byte* at, int64_t bytes) {
  if (executor.memory().where == Where::Host) return at;
  slot_.resize(static_cast<size_t>(bytes));
  executor.memory().download(slot_.data(), at, slot_.size(), executor.stream());
  return slot_.data();
}

void Sentinels::look_at_row(const OpCall& call, Executor& executor, int64_t op_row) {
  if (!any_not_finite(row_.data(), static_cast<int64_t>(row_.size()))) return;
  const auto bad = std::find_if(row_.begin(), row_.end(), [](float v) { return !std::isfinite(v); });
  found(call, executor, op_row, "cache", bad - row_.begin(), std::isinf(*bad));
}

// A key's own tensor has been looked at; the cache has its rounding, and with FP8 a scale.
void Sentinels::look_at_index_keys(const OpCall& call, Executor& executor) {
  const auto& args = *static_cast<const IndexKeyWriteArgs*>(call.args);
  const KvGeometry& g = args.kv.geometry;
  row_.resize(static_cast<size_t>(g.index_head_dim));
  for (int64_t r = 0; r < rows_.rows; ++r) {
    if (rows_.sequence[r] < 0) continue;
    const int32_t position = rows_.positions[r];
    const std::byte* page =
        home(executor, index_page(args.kv, rows_, rows_.sequence[r], position), g.index_page_bytes());
    read_index_key(g, page, position % g.page_tokens, row_.data());
    look_at_row(call, executor, r);
  }
}

// What kv_write leaves lies in the cache alone.
void Sentinels::look_at_latent(const OpCall& call, Executor& executor) {
  const auto& args = *static_cast<const KvWriteArgs*>(call.args);
  const KvGeometry& g = args.kv.geometry;
  row_.resize(static_cast<size_t>(g.kv_lora_rank) + static_cast<size_t>(g.rope_dim));
  for (int64_t r = 0; r < rows_.rows; ++r) {
    if (rows_.sequence[r] < 0) continue;
    const std::byte* slot =
        home(executor, latent_row(args.kv, rows_, rows_.sequence[r], rows_.positions[r]), g.latent_row_bytes());
    read_latent_row(g, slot, row_.data());
    look_at_row(call, executor, r);
    if (g.latent != KvFormat::Fp8Tile128) continue;
    codes_ += static_cast<uint64_t>(g.kv_lora_rank);
    for (int begin = 0; begin < g.kv_lora_rank; begin += 128) {
      const std::byte* end = slot + std::min(begin + 128, g.kv_lora_rank);
      const auto largest =
          std::count_if(slot + begin, end, [](std::byte b) { return (b & std::byte{0x7f}) == std::byte{0x7e}; });
      saturated_ += static_cast<uint64_t>(std::max<std::ptrdiff_t>(largest - 1, 0));
    }
  }
}

void Sentinels::found(const OpCall& call, Executor& executor, int64_t op_row, const char* tensor, int64_t column,
                      bool inf) {
  const int32_t row = call.origin.row(op_row);
  if (row < 0 || row >= rows_.rows || rows_.sequence[row] < 0 || seen_[static_cast<size_t>(row)] != 0) return;
  seen_[static_cast<size_t>(row)] = 1;
  faults_.push_back({.pass = pass_,
                     .row = row,
                     .sequence = rows_.sequence[row],
                     .position = rows_.positions[row],
                     .site = call.site,
                     .kernel = &call.kernel,
                     .tensor = tensor,
                     .column = column,
                     .kind = inf ? FaultKind::Inf : FaultKind::Nan});
  if (keep_inputs_ && records_.size() < kMaxRecords && OpRecord::possible(call.kernel.contract.op))
    record(call, executor, op_row, faults_.back());
}

// The op has run: its inputs are where they were, but for what it changed, which was kept.
void Sentinels::record(const OpCall& call, Executor& executor, int64_t op_row, RowFault& fault) {
  AnyArgs args = any_args(call.kernel.contract.op, call.args);
  for_tensors(args, [&](const char*, Tensor& tensor, Role role) {
    if (changed_at_ != nullptr && tensor.data == changed_at_ && role != Role::Out) tensor = changed_;
  });
  const OpCall as_it_was{
      .site = call.site, .rows = call.rows, .kernel = call.kernel, .args = raw(args), .origin = call.origin};
  OpRecord record(as_it_was, op_row, 1, executor);
  record.finish(call, executor);
  fault.record = static_cast<int>(records_.size());
  records_.push_back(std::move(record));
}

}  // namespace plumb
