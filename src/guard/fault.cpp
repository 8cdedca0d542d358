#include "guard/fault.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>

#include "guard/fault_args.h"
#include "guard/fault_rows.h"
#include "model/loaded_model.h"

namespace plumb {
namespace {

constexpr size_t kTileColumns = 16;

struct Planted {
  Fault fault{};
  std::vector<SiteId> sites{};
  std::map<SiteId, int64_t> launches{};                   // seen so far
  std::map<std::pair<SiteId, int64_t>, RowBytes> last{};  // StaleGraphRow: what a row of a place had the launch before
};

constexpr float kNoScale = 1.0f;

// A NaN or an infinity of the element's own type, as one element of a piece. E4M3 has no infinity.
void store_bad(const Fault& fault, const Piece& piece, std::vector<std::byte>& bytes) {
  const bool inf = fault.kind == PlantedKind::Inf;
  const float value = inf ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  const uint16_t half = inf ? 0x7f80 : 0x7fc0;
  const uint8_t e4m3_nan = 0x7f;
  const size_t width = static_cast<size_t>(bits(piece.dtype)) / 8;
  std::byte* to = bytes.data() + static_cast<size_t>(fault.column) % (piece.bytes / width) * width;
  if (piece.dtype == DType::F32) std::memcpy(to, &value, 4);
  if (piece.dtype == DType::BF16) std::memcpy(to, &half, 2);
  if (piece.dtype == DType::U8) std::memcpy(to, &e4m3_nan, 1);
}

class FaultInjector final : public OpObserver {
 public:
  FaultInjector(std::vector<Planted> planted, const Registry& registry, const ModelConfig& config)
      : planted_(std::move(planted)), weights_(registry), config_(config) {}
  std::shared_ptr<const FaultLog> log() const { return log_; }

  void begin_pass(const Paging& rows) override;
  void before(const OpCall& call, Executor& executor) override;
  void after(const OpCall& call, Executor& executor) override;

 private:
  bool strikes(Planted& planted, const OpCall& call) const;
  bool concerns(const Fault& fault, const OpCall& call, int64_t row) const;
  void apply(Planted& planted, const OpCall& call, Executor& executor);
  void recompute(const Fault& fault, const FaultContext& context, const std::vector<RowBytes>& right,
                 FaultyArgs& wrong);
  void edit(Planted& planted, const FaultContext& context, int64_t row);
  void poison_draws(const Fault& fault, const OpCall& call);

  std::vector<Planted> planted_;
  MisreadWeights weights_;
  const ModelConfig& config_;
  std::shared_ptr<FaultLog> log_ = std::make_shared<FaultLog>();
  Paging pass_{};
  bool decode_ = false;
  // Of the launch under way, when a fault strikes: what its pieces held before.
  std::vector<Planted*> striking_{};
  std::vector<std::vector<Piece>> rows_{};
  std::vector<RowBytes> before_{};
};

void FaultInjector::begin_pass(const Paging& rows) {
  pass_ = rows;
  std::vector<int> counts(static_cast<size_t>(std::max(rows.sequences, 1)));
  decode_ = true;
  for (int r = 0; r < rows.rows; ++r)
    if (rows.sequence[r] >= 0 && ++counts[static_cast<size_t>(rows.sequence[r])] > 1) decode_ = false;
}

bool FaultInjector::strikes(Planted& planted, const OpCall& call) const {
  const Fault& f = planted.fault;
  if (std::find(planted.sites.begin(), planted.sites.end(), call.site) == planted.sites.end()) return false;
  if (!f.kernel.empty() && f.kernel != call.kernel.contract.name) return false;
  if (f.phase != FaultPhase::Any && (f.phase == FaultPhase::Decode) != decode_) return false;
  if (f.rows > 0 && f.rows != pass_.rows) return false;
  return planted.launches[call.site]++ >= f.after;
}

bool FaultInjector::concerns(const Fault& f, const OpCall& call, int64_t row) const {
  if (call.kernel.contract.op == Op::Sample) return f.row < 0 || f.row == row;
  const int32_t step_row = call.origin.row(row);
  if (pass_.sequence[step_row] < 0) return false;
  return (f.row < 0 || f.row == step_row) && pass_.positions[step_row] >= f.from_position;
}

// What a sampler says of a row in whose probabilities it met such a value: a token drawn can't be made not finite.
void FaultInjector::poison_draws(const Fault& f, const OpCall& call) {
  const auto& args = *static_cast<const SampleArgs*>(call.args);
  ++log_->launches;
  for (int64_t r = 0; r < call.rows; ++r) {
    const SampleRow& row = args.rows[static_cast<size_t>(r)];
    if (!concerns(f, call, r) || (f.only_hot && !(row.temperature > 0))) continue;
    if (static_cast<int64_t>(row.position) < f.from_position) continue;
    args.out[static_cast<size_t>(r)] = {.poisoned = true};
    ++log_->rows_changed;
  }
}

void FaultInjector::before(const OpCall& call, Executor& executor) {
  striking_.clear();
  for (Planted& planted : planted_)
    if (strikes(planted, call)) striking_.push_back(&planted);
  if (striking_.empty() || call.kernel.contract.op == Op::Sample) return;
  AnyArgs args = any_args(call.kernel.contract.op, call.args);
  DeviceBytes memory(executor);
  rows_ = written_rows(args, call, pass_);
  before_.clear();
  for (const auto& row : rows_) before_.push_back(read_row(row, memory));
}

void FaultInjector::after(const OpCall& call, Executor& executor) {
  for (Planted* planted : std::exchange(striking_, {})) {
    if (call.kernel.contract.op == Op::Sample)
      poison_draws(planted->fault, call);
    else
      apply(*planted, call, executor);
  }
}

void FaultInjector::apply(Planted& planted, const OpCall& call, Executor& executor) {
  DeviceBytes memory(executor);
  const FaultContext context{
      .call = call, .pass = pass_, .executor = executor, .memory = memory, .weights = weights_, .config = config_};
  std::vector<RowBytes> right;
  for (const auto& row : rows_) right.push_back(read_row(row, memory));
  FaultyArgs wrong{.args = any_args(call.kernel.contract.op, call.args)};
  if (change_args(planted.fault, context, wrong)) {
    recompute(planted.fault, context, right, wrong);
  } else {
    for (int64_t r = 0; r < call.rows; ++r)
      if (concerns(planted.fault, call, r)) edit(planted, context, r);
  }
  ++log_->launches;
  for (size_t r = 0; r < rows_.size(); ++r) log_->rows_changed += read_row(rows_[r], memory) != right[r];
}

// All rows once more on the wrong arguments; rows that are not concerned get back what was right.
void FaultInjector::recompute(const Fault& fault, const FaultContext& context, const std::vector<RowBytes>& right,
                              FaultyArgs& wrong) {
  const OpCall& call = context.call;
  for (size_t r = 0; r < rows_.size(); ++r)
    for (size_t i = 0; i < rows_[r].size(); ++i)
      if (rows_[r][i].input) context.memory.put(rows_[r][i].data, before_[r][i].data(), rows_[r][i].bytes);
  call.kernel.launch(raw(wrong.args), context.executor.stream());
  if (fault.kind == PlantedKind::RopeHalves && std::holds_alternative<KvWriteArgs>(wrong.args))
    finish_rope_halves(std::get<KvWriteArgs>(wrong.args), context);
  for (size_t r = 0; r < rows_.size(); ++r)
    if (!concerns(fault, call, static_cast<int64_t>(r))) write_row(rows_[r], right[r], context.memory);
}

// The scales of one row of an FP8 latent cache.
void drop_latent_scales(const KvGeometry& g, std::byte* row) {
  for (int begin = 0; begin < g.kv_lora_rank; begin += 128)
    std::memcpy(row + g.kv_lora_rank + begin / 128 * 4, &kNoScale, 4);
}

void swap_ids(int32_t one, int32_t other, std::vector<std::byte>& ids) {
  for (size_t at = 0; at + 4 <= ids.size(); at += 4) {
    int32_t id = 0;
    std::memcpy(&id, ids.data() + at, 4);
    id = id == one ? other : id == other ? one : id;
    std::memcpy(ids.data() + at, &id, 4);
  }
}

bool same_sizes(const RowBytes& a, const RowBytes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.size() == y.size(); });
}

void FaultInjector::edit(Planted& planted, const FaultContext& context, int64_t row) {
  const Fault& f = planted.fault;
  const std::vector<Piece>& pieces = rows_[static_cast<size_t>(row)];
  if (pieces.empty()) return;
  const RowBytes& old = before_[static_cast<size_t>(row)];
  RowBytes now = read_row(pieces, context.memory);
  const Op op = context.call.kernel.contract.op;
  // The result proper is what an op writes last; but an FP8 key has its scale behind it.
  size_t at = pieces.size() - 1;
  const bool is_scale = op == Op::IndexKeyWrite && pieces[at - 1].dtype == DType::U8;
  const size_t width = static_cast<size_t>(bits(pieces[at].dtype)) / 8;
  switch (f.kind) {
    case PlantedKind::Nan:
    case PlantedKind::Inf:
      if (is_scale && f.kind == PlantedKind::Nan) --at;
      store_bad(f, pieces[at], now[at]);
      break;
    case PlantedKind::KvScaleDropped:
      if (is_scale)
        std::memcpy(now[at].data(), &kNoScale, 4);
      else
        drop_latent_scales(static_cast<const KvWriteArgs*>(context.call.args)->kv.geometry, now[at].data());
      break;
    case PlantedKind::TopkPatternShort:
      now = old;
      break;
    case PlantedKind::StaleGraphRow: {
      RowBytes& last = planted.last[{context.call.site, row}];
      if (same_sizes(last, now))
        now.swap(last);
      else
        last = now;
      break;
    }
    case PlantedKind::MissingFence: {
      const size_t begin = std::min(static_cast<size_t>(f.column) * kTileColumns * width, pieces[at].bytes);
      std::copy_n(old[at].begin() + static_cast<std::ptrdiff_t>(begin),
                  std::min(kTileColumns * width, pieces[at].bytes - begin),
                  now[at].begin() + static_cast<std::ptrdiff_t>(begin));
      break;
    }
    case PlantedKind::RankSkew: {
      std::byte* element =
          now[at].data() + static_cast<size_t>(f.column) % std::max<size_t>(pieces[at].bytes / width - 1, 1) * width;
      if (pieces[at].dtype == DType::I32)
        std::swap_ranges(element, element + width, element + width);
      else
        *element ^= std::byte{1};
      break;
    }
    case PlantedKind::ExpertSwapped: {  // of the router
      const auto experts = static_cast<int32_t>(static_cast<const RouterArgs*>(context.call.args)->gate->n());
      const int32_t one = f.column % experts;
      for (size_t i = 0; i < pieces.size(); ++i)
        if (pieces[i].dtype == DType::I32) swap_ids(one, (one + 1) % experts, now[i]);
      break;
    }
    default:
      return;
  }
  write_row(pieces, now, context.memory);
}

}  // namespace

Result<std::shared_ptr<const FaultLog>> plant_faults(const std::vector<Fault>& faults, const Registry& registry,
                                                     LoadedModel& model) {
  Plan& plan = model.planned.plan;
  std::vector<Planted> planted;
  for (const Fault& fault : faults) {
    Planted one{.fault = fault};
    if (fault.kind == PlantedKind::RankSkew && model.ranks == 1)
      return Error{
          Code::Unsupported, "fault " + fault.to_string() + " can't live there", "there is one rank", {"--tp 2"}};
    if (fault.rank >= model.ranks)
      return Error{
          Code::Usage, "fault " + fault.to_string() + ": ranks are 0 ... " + std::to_string(model.ranks - 1), "", {}};
    const int rank = fault.rank < 0 && fault.kind == PlantedKind::RankSkew ? model.ranks - 1 : fault.rank;
    std::string refused;
    bool known = false;
    for (size_t i = 0; i < plan.sites.size(); ++i) {
      const SiteDecl& decl = plan.sites[i].decl;
      if (fault.place != decl.name && fault.place != to_string(decl.call.op)) continue;
      known = true;
      refused = why_not(fault.kind, decl.call);
      if (refused.empty()) one.sites.push_back(static_cast<SiteId>(i));
    }
    if (!known)
      return Error{Code::Usage,
                   "fault " + fault.to_string() + ": this model has no place and no op of that name",
                   "",
                   {"a place of plumb plan MODEL --json"}};
    if (one.sites.empty())
      return Error{Code::Unsupported, "fault " + fault.to_string() + " can't live there", refused, {}};
    if (rank < 0 || rank == model.rank) planted.push_back(std::move(one));
  }
  const auto injector = std::make_shared<FaultInjector>(std::move(planted), registry, model.config());
  plan.planted = injector;
  return injector->log();
}

}  // namespace plumb
