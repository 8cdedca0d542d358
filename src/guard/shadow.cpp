#include "guard/shadow.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/hash.h"
#include "base/thread_pool.h"

namespace plumb {
namespace {

constexpr int kLayersInTurn = 2;
constexpr size_t kJobs = 4096;
constexpr int64_t kWaitingBytes = int64_t{256} << 20;
constexpr int64_t kLaunchBytes = int64_t{128} << 20;  // of one record

int count_layers(const Plan& plan) {
  int layers = 0;
  for (const Site& site : plan.sites) layers = std::max(layers, site.decl.layer + 1);
  return layers;
}

// The same choice in every run: reproducible, yet spread over steps and rows.
double fraction_of(uint64_t hash) { return static_cast<double>(hash >> 11) * 0x1p-53; }

}  // namespace

Shadow::Shadow(Executor& executor, const Registry& registry, double rate, Found found)
    : plan_(executor.plan()),
      witness_(plan_, registry, nullptr, witness_device_beside(executor)),
      rate_(rate),
      found_(std::move(found)),
      recorder_([this](const OpCall& call) { return wanted(call); },
                [this](OpRecord record) {
                  const auto bytes = static_cast<int64_t>(record.bytes());
                  waiting_bytes_ += bytes;
                  ++waiting_;
                  std::function<void()> job = [this, step = step_, bytes,
                                               held = std::make_shared<OpRecord>(std::move(record))] {
                    judge(step, *held);
                    waiting_bytes_ -= bytes;
                    --waiting_;
                  };
                  // NOLINTNEXTLINE(bugprone-use-after-move): it is moved from only when it is taken
                  while (waiting_bytes_ > kWaitingBytes || !worker_->try_submit(std::move(job)))
                    std::this_thread::sleep_for(std::chrono::microseconds(200));
                }),
      layers_(count_layers(plan_)),
      worker_(std::make_unique<JobPool>(1, kJobs)) {}

Shadow::~Shadow() = default;

RowRange Shadow::begin_step(uint64_t step, int rows) {
  step_ = step;
  chosen_ = {};
  passes_ = 0;
  const uint64_t hash = Hash64().add(step).add(rate_ >= 1 ? 1 : 2).value();
  if (rows == 0 || fraction_of(hash) >= rate_) return {};
  if (rate_ < 1) {
    if (waiting_ > 0) {
      ++skipped_;
      return {};
    }
    layer_ = (layer_ + kLayersInTurn) % layers_;
  }
  ++steps_;
  chosen_ = rate_ < 1 ? RowRange{.first = static_cast<int64_t>(hash % static_cast<uint64_t>(rows)), .count = 1}
                      : RowRange{.first = 0, .count = rows};
  return chosen_;
}

RowRange Shadow::wanted(const OpCall& call) const {
  if (chosen_.count == 0 || passes_ > 2) return {};
  if (rate_ >= 1) {
    const int64_t count = OpRecord::rows_within(call, kLaunchBytes);
    return {.first = static_cast<int64_t>(step_ % static_cast<uint64_t>(call.rows - count + 1)), .count = count};
  }
  const auto row = static_cast<int32_t>(chosen_.first);
  if (row >= rows_.rows || rows_.sequence[row] < 0) return {};
  const int layer = std::max(plan_.sites[static_cast<size_t>(call.site)].decl.layer, 0);
  if ((layer - layer_ + layers_) % layers_ >= kLayersInTurn) return {};
  for (int64_t r = call.origin.map == nullptr ? std::max(0, row - call.origin.first) : 0; r < call.rows; ++r) {
    if (call.origin.row(r) == row) return {.first = r, .count = 1};
    if (call.origin.row(r) > row) break;
  }
  return {};
}

void Shadow::before(const OpCall& call, Executor& executor) { recorder_.before(call, executor); }
void Shadow::after(const OpCall& call, Executor& executor) { recorder_.after(call, executor); }

void Shadow::judge(uint64_t step, OpRecord& record) {
  judging_ = step;
  const Judgement judgement = witness_.judge(record);
  ++ops_;
  constexpr auto kEdges = ShadowCounts::kRatioEdges;
  size_t bucket = 0;
  while (bucket < kEdges.size() && !(judgement.worst <= kEdges[bucket])) ++bucket;
  ++ratio_[bucket];
  if (std::isfinite(judgement.worst)) ratio_sum_ = ratio_sum_ + judgement.worst;
  if (judgement.passes()) return;
  ++outside_;
  if (record.rows() == 1) return found_(step, record, judgement);
  for (int64_t r = 0; r < record.rows(); ++r) {
    OpRecord row = record.row(r);
    const Judgement of_row = witness_.judge(row);
    if (!of_row.passes()) found_(step, row, of_row);
  }
}

ShadowCounts Shadow::counts() const {
  ShadowCounts counts{.steps = steps_,
                      .skipped = skipped_,
                      .ops = ops_,
                      .outside = outside_,
                      .waiting = static_cast<uint64_t>(waiting_.load()),
                      .ratio_sum = ratio_sum_};
  for (size_t i = 0; i < ratio_.size(); ++i) counts.ratio[i] = ratio_[i];
  return counts;
}

void Shadow::settle() {
  while (waiting_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace plumb
