#include "guard/guard.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace plumb {
namespace {

// Unique on this machine, in order of time: fault-<milliseconds since 1970, hex>-s<step>-r<row>.
std::string incident_id(uint64_t step, int row) {
  const auto now =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  char text[80];
  std::snprintf(text, sizeof text, "fault-%llx-s%llu-r%d", static_cast<unsigned long long>(now.count()),
                static_cast<unsigned long long>(step), row);
  return text;
}

}  // namespace

Guard::Guard(Executor& executor, const GuardOptions& options, int max_rows, const Tensor& report)
    : executor_(executor),
      options_(options),
      sentinels_(max_rows, /*keep_inputs=*/!options.captures.folder.empty()),
      captures_(options.captures, options.origin) {
  if (options.sentinels && executor.memory().scan != nullptr) in_stream_.emplace(sentinels_, report);
  if (options.sentinels)
    executor.add_observer(in_stream_ ? static_cast<OpObserver&>(*in_stream_) : static_cast<OpObserver&>(sentinels_));
  if (options.shadow_rate <= 0) return;
  PLUMB_CHECK(options.registry != nullptr, "the shadow needs the kernels");
  shadow_ =
      std::make_unique<Shadow>(executor, *options.registry, options.shadow_rate,
                               [this](uint64_t step, OpRecord& r, const Judgement& j) { found_late(step, r, j); });
  executor.add_observer(*shadow_);
}

Guard::~Guard() {
  executor_.remove_observer(sentinels_);
  if (in_stream_) executor_.remove_observer(*in_stream_);
  if (shadow_) executor_.remove_observer(*shadow_);
}

void Guard::begin_step(uint64_t step, int rows, const std::function<RowOwner(int row)>& owner) {
  step_ = step;
  sentinels_.begin_step();
  const RowRange range = shadow_ ? shadow_->begin_step(step, rows) : RowRange{};
  if (range.count == 0) return;
  Owned owned{.step = step, .first = range.first};
  for (int64_t row = range.first; row < range.first + range.count; ++row) {
    RowOwner& whose = owned.owners.emplace_back(owner(static_cast<int>(row)));
    std::vector<int32_t>* known = options_.captures.with_tokens ? &owned.tokens[whose.sequence] : nullptr;
    if (known != nullptr && known->size() < whose.tokens.size())
      known->assign(whose.tokens.begin(), whose.tokens.end());
    whose.tokens = {};
  }
  const std::lock_guard lock(mutex_);
  while (!shadowed_.empty() && shadowed_.front().step < shadow_->judging()) shadowed_.pop_front();
  shadowed_.push_back(std::move(owned));
}

bool Guard::note(const Tensor& report) {
  return in_stream_ && in_stream_->note(executor_.plan(), report) && sentinels_.pass() == 0;
}

void Guard::watch_again(const std::function<void()>& pass) {
  executor_.remove_observer(*in_stream_);
  sentinels_.watch_again(executor_, pass);
  executor_.add_observer_first(*in_stream_);
}

const RowFault* Guard::fault(int row) const {
  for (const RowFault& fault : sentinels_.faults())
    if (fault.pass == 0 && fault.row == row) return &fault;
  return nullptr;
}

Incident Guard::name(uint64_t step, int row, SiteId site, const Kernel& kernel) const {
  const SiteDecl& decl = executor_.plan().sites[static_cast<size_t>(site)].decl;
  return {.id = incident_id(step, row),
          .step = step,
          .rank = options_.rank,
          .layer = decl.layer,
          .site = decl.name,
          .op = to_string(decl.call.op),
          .kernel = kernel.contract.name,
          .row = row};
}

Incident Guard::report(const RowFault& fault, const RowOwner& owner) {
  Incident incident = name(step_, fault.row, fault.site, *fault.kernel);
  incident.kind = fault.kind;
  incident.pass = fault.pass;
  incident.repeated = fault.repeated;
  incident.tensor = fault.tensor;
  incident.column = fault.column;
  incident.position = owner.position;
  incident.request_id = owner.request_id;
  ++(fault.kind == FaultKind::Nan ? nan_rows_ : inf_rows_);
  if (fault.record >= 0) {
    incident.captured = true;
    OpRecord& record = sentinels_.records()[static_cast<size_t>(fault.record)];
    incident.captured = captures_.add(incident, std::move(record), owner.tokens);
  }
  log(incident);
  return incident;
}

void Guard::log(const Incident& incident) const {
  if (options_.log)
    log_error("numerical fault " + incident.id + " in request " + incident.request_id + ": " + incident.to_string());
}

void Guard::found_late(uint64_t step, OpRecord& record, const Judgement& judgement) {
  const Deviation& d = judgement.deviation;
  Incident incident = name(step, record.step_row(0), record.site(), record.kernel());
  const std::string_view kind = d.kind;
  incident.kind = kind == "nan" ? FaultKind::Nan : kind == "inf" ? FaultKind::Inf : FaultKind::Drift;
  incident.tensor = d.tensor;
  incident.column = d.column;
  incident.have = d.have;
  incident.want = d.want;
  incident.bound = d.bound;
  RowOwner owner;
  std::vector<int32_t> tokens;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(shadowed_, step, &Owned::step);
    const int64_t at = found == shadowed_.end() ? -1 : incident.row - found->first;
    if (at >= 0 && at < static_cast<int64_t>(found->owners.size())) owner = found->owners[static_cast<size_t>(at)];
    if (at >= 0 && !found->told.insert(owner.sequence).second) return;
    if (owner.position >= 0 && options_.captures.with_tokens) {
      const std::vector<int32_t>& all = found->tokens[owner.sequence];
      tokens.assign(all.begin(), all.begin() + std::min<std::ptrdiff_t>(owner.position + 1, std::ssize(all)));
    }
  }
  incident.position = owner.position;
  incident.request_id = owner.request_id;
  ++drift_rows_;
  incident.captured = true;
  incident.captured = captures_.add(incident, std::move(record), tokens);
  log(incident);
  const std::lock_guard lock(mutex_);
  late_.push_back({.sequence = owner.sequence, .incident = std::move(incident)});
  any_late_ = true;
}

std::vector<Guard::Late> Guard::take_late() {
  if (!any_late_) return {};
  const std::lock_guard lock(mutex_);
  any_late_ = false;
  return std::exchange(late_, {});
}

GuardStats Guard::stats() const {
  return {.nan_rows = nan_rows_,
          .inf_rows = inf_rows_,
          .drift_rows = drift_rows_,
          .captures_written = captures_.written(),
          .captures_dropped = captures_.dropped(),
          .cache_codes = sentinels_.cache_codes(),
          .saturated_codes = sentinels_.saturated_codes(),
          .shadow = shadow_ ? shadow_->counts() : ShadowCounts{}};
}

void Guard::settle() {
  if (shadow_) shadow_->settle();
}

}  // namespace plumb
