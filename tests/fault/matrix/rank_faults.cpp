#include "matrix/rank_faults.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/self_check.h"
#include "guard/fault.h"
#include "matrix/runs.h"
#include "support/rank_runners.h"

namespace plumb::matrix {
namespace {

using plumb::testing::RankRunners;

class RankFaults {
 public:
  RankFaults(const Setting& setting, std::string folder) : setting_(setting), folder_(std::move(folder)) {}

  Result<Plan> plan();
  Status run_clean();
  Outcome run(const Case& one);

 private:
  // All ranks; `fault` null: without one.
  std::unique_ptr<RankRunners> open(const Fault* fault);
  std::vector<Check> verify(RankRunners& ranks);
  // The answers of two short requests, and of a third that reaches positions from kStruckFrom on.
  std::vector<std::vector<int32_t>> serve(RankRunners& ranks);
  static std::string place_of(RankRunners& ranks);

  const Setting setting_;
  const std::string folder_;
  Registry registry_ = make_registry();
  ThreadPool pool_{kThreads};
  std::shared_ptr<const FaultLog> log_{};  // of the last rank
  std::vector<std::vector<int32_t>> clean_{};
};

std::unique_ptr<RankRunners> RankFaults::open(const Fault* fault) {
  return std::make_unique<RankRunners>(folder_, Ranks{.count = setting_.ranks}, plan_options(setting_), registry_,
                                       [this, fault](LoadedModel& model) -> Status {
                                         if (fault == nullptr) return Ok{};
                                         PLUMB_TRY(log_, plant_faults({*fault}, registry_, model));
                                         return Ok{};
                                       });
}

std::vector<Check> RankFaults::verify(RankRunners& ranks) {
  return run_self_checks({.forward = ranks.leader().forward_state(),
                          .options = engine_options(registry_, kRows),
                          .registry = registry_,
                          .pool = &pool_,
                          .first_only = true});
}

std::vector<std::vector<int32_t>> RankFaults::serve(RankRunners& ranks) {
  const auto engine = Engine::start(ranks.leader().forward_state(), engine_options(registry_, kRows));
  if (!engine) return {};
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(std::make_shared<TokenStream>());
    if (!(*engine)->submit(i == 2 ? request_of("victim", kVictimPrompt, kVictimAnswer, 9)
                                  : request_of("neighbour", kNeighbourPrompt, kNeighbourAnswer, i),
                           streams.back()))
      return {};
  }
  std::vector<std::vector<int32_t>> ids(streams.size());
  for (size_t i = 0; i < streams.size(); ++i) {
    std::vector<TokenEvent> events;
    for (bool over = false; !over; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      over = streams[i]->take(events);
      for (const TokenEvent& event : events)
        if (event.id >= 0) ids[i].push_back(event.id);
    }
  }
  return ids;
}

// "... has other bits than rank 0 (...) at PLACE", with ": why" behind it where another rank was the first to tell
std::string RankFaults::place_of(RankRunners& ranks) {
  if (!ranks.link(0).failed()) return {};
  const std::string& what = ranks.link(0).comm().failure()->what;
  const size_t at = what.rfind(" at ");
  if (at == std::string::npos) return what;
  return what.substr(at + 4, what.find(": ", at) - at - 4);
}

Result<Plan> RankFaults::plan() {
  const auto ranks = open(nullptr);
  if (!ranks->opened()) return Error{Code::Internal, setting_.name() + " does not start", {}, {}};
  return ranks->leader().planned().plan;
}

Status RankFaults::run_clean() {
  const auto ranks = open(nullptr);
  for (const Check& check : verify(*ranks))
    if (check.verdict == Check::Verdict::Failed)
      return Error{Code::Verification, setting_.name() + " is not verified without a fault", check.name, {}};
  clean_ = serve(*ranks);
  if (ranks->link(0).failed() || clean_.empty())
    return Error{Code::Verification, setting_.name() + " does not serve without a fault", place_of(*ranks), {}};
  return Ok{};
}

Outcome RankFaults::run(const Case& one) {
  Outcome outcome{.planted = one, .setting = setting_.name()};
  {
    const auto ranks = open(&one.fault);
    for (const Check& check : verify(*ranks))
      if (check.verdict == Check::Verdict::Failed) outcome.quick = check.name;
    outcome.verdict = place_of(*ranks);
    ranks->leader();  // the others have ended with it
    if (ranks->link(0).failed()) static_cast<void>(ranks->end_of(1));
    outcome.launches = log_->launches;
    outcome.rows_changed = log_->rows_changed;
  }
  outcome.found = outcome.rows_changed > 0;
  outcome.right_op = outcome.right_layer = outcome.verdict == one.place;
  Fault late = one.fault;
  late.from_position = kStruckFrom;
  const auto ranks = open(&late);
  outcome.ran = true;
  const std::vector<std::vector<int32_t>> ids = serve(*ranks);
  outcome.incident = place_of(*ranks);
  if (ranks->link(0).failed()) {
    outcome.by = "ranks";
    static_cast<void>(ranks->end_of(1));
  }
  outcome.served_rows_changed = log_->rows_changed;
  // All requests end when ranks differ; what they have said until then is right.
  for (size_t i = 0; i < ids.size(); ++i)
    if (!std::equal(ids[i].begin(), ids[i].end(), clean_[i].begin(),
                    clean_[i].begin() + static_cast<std::ptrdiff_t>(std::min(ids[i].size(), clean_[i].size()))))
      outcome.neighbours_harmed = true;
  return outcome;
}

}  // namespace

Status run_rank_faults(int every, bool list, std::vector<Outcome>& outcomes, std::vector<std::string>& absent) {
  const std::vector<Setting> all = rank_settings();
  for (size_t index = 0; index < all.size(); ++index) {
    const std::string folder = folder_of(all[index]);
    if (folder.empty()) {
      absent.push_back(all[index].name());
      continue;
    }
    RankFaults faults(all[index], folder);
    PLUMB_TRY(const Plan plan, faults.plan());
    const std::vector<Case> cases = rank_cases_of(plan, index);
    std::printf("%s: %zu cases, one in %d is run\n", all[index].name().c_str(), cases.size(), every);
    if (!list) PLUMB_TRY_STATUS(faults.run_clean());
    for (size_t i = 0; i < cases.size(); ++i) {
      if ((i + index) % static_cast<size_t>(every) != 0) continue;
      if (list) {
        std::printf("%s at %s, %s\n", cases[i].kind().c_str(), cases[i].place.c_str(), cases[i].phase().c_str());
        continue;
      }
      outcomes.push_back(faults.run(cases[i]));
      tell(outcomes.back());
    }
  }
  return Ok{};
}

}  // namespace plumb::matrix
