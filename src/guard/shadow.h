// Shadow: for a fraction of steps one row's ops are recorded as they run and recomputed by the reference, on a
// device by its plain kernels, on a thread of its own, so that finite garbage is found too. Rate 1: every step, layer
// and row, so that what goes wrong in one row of many is found as well, and a step waits when the recomputation falls
// behind. Below it: two layers of a step in turn, and a step is left out while the one before is still being
// recomputed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "guard/guard_stats.h"
#include "guard/incident.h"
#include "guard/op_recorder.h"
#include "guard/witness.h"

namespace plumb {

class JobPool;

class Shadow final : public OpObserver {
 public:
  // Called on the shadow's thread for each row of an op that is out of bound, with a record of that row alone, which it
  // may take.
  using Found = std::function<void(uint64_t step, OpRecord& record, const Judgement& judgement)>;
  Shadow(Executor& executor, const Registry& registry, double rate, Found found);
  ~Shadow() override;  // finishes what was recorded

  Watching watching() const override { return chosen_.count == 0 ? Watching::Nothing : Watching::Launches; }
  // Chooses from a step with rows 0 ... rows - 1; none: this step is not shadowed.
  RowRange begin_step(uint64_t step, int rows);
  // Everything of the steps before this one has been judged.
  uint64_t judging() const { return judging_; }
  void begin_pass(const Paging& rows) override {
    rows_ = rows;
    ++passes_;
    recorder_.begin_pass(rows);
  }
  void before(const OpCall& call, Executor& executor) override;
  void after(const OpCall& call, Executor& executor) override;

  ShadowCounts counts() const;
  // Waits until everything recorded so far has been judged.
  void settle();

 private:
  RowRange wanted(const OpCall& call) const;
  void judge(uint64_t step, OpRecord& record);

  const Plan& plan_;
  const Witness witness_;
  const double rate_;
  const Found found_;
  OpRecorder recorder_;
  uint64_t step_ = 0;
  RowRange chosen_{};  // rows of the step
  int layer_ = 0;      // first of those in turn
  int layers_ = 1;
  Paging rows_{};
  int passes_ = 0;  // of the step; from the third on, rows are no rows of the step
  std::atomic<int64_t> waiting_bytes_{0};
  std::atomic<int> waiting_{0};
  std::atomic<uint64_t> steps_{0}, skipped_{0}, ops_{0}, outside_{0};
  std::array<std::atomic<uint64_t>, ShadowCounts::kRatioEdges.size() + 1> ratio_{};
  std::atomic<double> ratio_sum_{0};
  std::atomic<uint64_t> judging_{0};
  std::unique_ptr<JobPool> worker_{};
};

}  // namespace plumb
