#include "engine/op_watch.h"

#include <algorithm>
#include <set>

#include "guard/witness.h"

namespace plumb {
namespace {

class OpWatch {
 public:
  OpWatch(const SelfCheckInput& input, Check& check)
      : plan_(input.forward.executor.plan()),
        check_(check),
        witness_(plan_, input.registry, input.pool, witness_device(input.forward.executor)) {}

  bool failed() const { return failed_; }
  void launching(const OpCall& call) { rows_ = call.rows; }
  const Site& site(SiteId id) const { return plan_.sites[static_cast<size_t>(id)]; }
  void take(const OpRecord& record);
  void finish();

 private:
  const Plan& plan_;
  Check& check_;
  const Witness witness_;
  int64_t ops_ = 0, elements_ = 0, rows_ = 0;
  std::set<int> layers_{};
  bool failed_ = false;
};

void OpWatch::take(const OpRecord& record) {
  const SiteDecl& decl = site(record.site()).decl;
  const Judgement judgement = witness_.judge(record);
  ++ops_;
  elements_ += judgement.compared;
  layers_.insert(decl.layer);
  if (judgement.worst < check_.figure) return;
  check_.figure = judgement.worst;
  check_.worst = {
      .layer = decl.layer, .site = decl.name, .op = to_string(decl.call.op), .kernel = record.kernel().contract.name};
  if (judgement.passes()) return;
  failed_ = true;
  const int64_t row = std::max<int64_t>(judgement.deviation.row, 0);
  check_.worst.deviation = judgement.to_string() + ", row " + std::to_string(record.step_row(row)) +
                           " of the step, in a launch of " + std::to_string(rows_) + (rows_ == 1 ? " row" : " rows");
  for (const Kernel* kernel : witness_.accepted(record)) {
    if (kernel == &record.kernel()) continue;  // even if it passes another time
    const Result<Judgement> other = witness_.judge(record, *kernel);
    if (other && other->passes() && !kernel->contract.reference) check_.worst.passing.push_back(kernel->contract.name);
  }
}

void OpWatch::finish() {
  if (failed_) check_.verdict = Check::Verdict::Failed;
  check_.bound = 1;
  check_.unit = "largest |error| / bound of the kernel's contract";
  check_.sample += std::to_string(ops_) + " ops of " + std::to_string(layers_.size()) + " layers, " +
                   std::to_string(elements_) + " values";
}

}  // namespace

void watch_ops(const SelfCheckInput& input, Check& check,
               const std::function<RowRange(const OpCall&, const Site&)>& wanted, const std::function<void()>& body) {
  OpWatch watch(input, check);
  OpRecorder recorder(
      [&](const OpCall& call) {
        watch.launching(call);
        return watch.failed() ? RowRange{} : wanted(call, watch.site(call.site));
      },
      [&](const OpRecord& record) { watch.take(record); });
  input.forward.executor.add_observer(recorder);
  body();
  input.forward.executor.remove_observer(recorder);
  watch.finish();
}

}  // namespace plumb
