// Plants each fault of the table, runs `plumb check`'s search on the model, and writes where it was found.
//   fault_matrix [--every N] [--doc FILE] [--list yes]
// --every N: each N-th case only. --list yes: tells the cases and runs none. Exit code 1 when something that must be
// found was not.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/self_check.h"
#include "guard/check.h"
#include "matrix/rank_faults.h"
#include "matrix/runs.h"
#include "matrix/table.h"
#include "model/loaded_model.h"

namespace plumb::matrix {
namespace {

constexpr int64_t kBeyondTopk = 16;  // tokens of the prompt past index_topk
// Rows judged of each launch, and decode steps; all rows of many steps before a fault is said to have no effect.
constexpr int64_t kRowsFirst = 8;
constexpr int kStepsFirst = 2, kStepsMost = 24;
struct Running {
  std::unique_ptr<ModelRunner> runner{};
  LoadedModel* model = nullptr;
};

Result<Running> open(const std::string& folder, const Setting& setting, const Case* lying, const Registry& registry) {
  Running running;
  RunnerOptions options{.plan = plan_options(setting), .threads = kThreads};
  if (lying != nullptr) options.plan.pinned = {{lying->place, lying->lying}};
  options.loaded = [&running](LoadedModel& model) -> Status {
    running.model = &model;
    return Ok{};
  };
  PLUMB_TRY(running.runner, ModelRunner::open(folder, registry, options));
  return running;
}

// The cases of one setting.
class Matrix {
 public:
  Matrix(size_t index, int every, bool list) : index_(index), every_(static_cast<size_t>(every)), list_(list) {}

  Status run();
  const std::vector<Outcome>& outcomes() const { return outcomes_; }
  bool absent() const { return absent_; }

 private:
  Status run_clean(const Setting& setting, Running& running);
  Status run_setting(const Setting& setting, const std::string& folder);
  Result<Outcome> plant(const Case& one, Running& running);
  Result<CheckReport> check(ModelRunner& runner, int64_t rows, int steps);
  std::string verify(Running& running, bool full);
  Result<std::vector<std::vector<int32_t>>> neighbours(EngineApi& engine, Outcome* outcome);
  Status serve(const Case& one, Running& running, Outcome& outcome);

  size_t index_, every_;
  bool list_, absent_ = false;
  Registry registry_ = make_registry();
  ThreadPool pool_{kThreads};
  std::vector<Outcome> outcomes_{};
  std::vector<std::vector<int32_t>> clean_{};  // what the neighbours say without a fault, in this setting
};

// The first check that fails, and what it names; empty: all pass.
std::string Matrix::verify(Running& running, bool full) {
  const SelfCheckInput input{.forward = running.runner->forward_state(),
                             .options = engine_options(registry_, 48),
                             .registry = registry_,
                             .pool = &pool_,
                             .full = full,
                             .first_only = true};
  for (const Check& one : run_self_checks(input))
    if (one.verdict == Check::Verdict::Failed) return one.name;
  return {};
}

// Two short requests beside the one whose fate is noted in `outcome`; null: they are alone.
Result<std::vector<std::vector<int32_t>>> Matrix::neighbours(EngineApi& engine, Outcome* outcome) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 3; ++i) {
    if (i == 2 && outcome == nullptr) break;
    streams.push_back(std::make_shared<TokenStream>());
    GenerateRequest request = i == 2 ? request_of("victim", kVictimPrompt, kVictimAnswer, 9)
                                     : request_of("neighbour", kNeighbourPrompt, kNeighbourAnswer, i);
    PLUMB_TRY_STATUS(engine.submit(std::move(request), streams.back()));
  }
  std::vector<std::vector<int32_t>> ids;
  for (size_t i = 0; i < streams.size(); ++i) {
    std::vector<int32_t> got;
    std::vector<TokenEvent> events;
    for (bool over = false; !over; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      over = streams[i]->take(events);
      for (const TokenEvent& event : events) {
        if (event.id >= 0) got.push_back(event.id);
        if (i < 2 || !event.incident) continue;
        outcome->incident = event.incident->site;
        outcome->by = event.incident->kind == FaultKind::Drift ? "shadow" : "guard";
      }
    }
    if (i < 2) ids.push_back(std::move(got));
  }
  return ids;
}

// First with the guard alone among neighbours; what stays unseen is finite, and the shadow's.
Status Matrix::serve(const Case& one, Running& running, Outcome& outcome) {
  Fault fault = one.fault;
  if (one.op != "sample") fault.from_position = kStruckFrom;
  PLUMB_TRY(const auto log, plant_faults({fault}, registry_, *running.model));
  outcome.ran = true;
  {
    PLUMB_TRY(const auto engine, Engine::start(running.runner->forward_state(), engine_options(registry_, 48)));
    PLUMB_TRY(const auto ids, neighbours(*engine, &outcome));
    outcome.neighbours_harmed = one.op != "sample" && ids != clean_;
    outcome.served_rows_changed = log->rows_changed;
  }
  if (outcome.by.empty() && outcome.served_rows_changed > 0) {
    EngineOptions options = engine_options(registry_, 8);
    options.guard.shadow_rate = 1;
    const int shadowed = fault.phase == FaultPhase::Prefill ? 2 : kVictimAnswer;
    PLUMB_TRY(const auto engine, Engine::start(running.runner->forward_state(), options));
    const auto result =
        generate(*engine, request_of("victim", kVictimPrompt, shadowed, 9), [&outcome](const TokenEvent& event) {
          if (event.incident) {
            outcome.incident = event.incident->site;
            outcome.by = event.incident->kind == FaultKind::Drift ? "shadow" : "guard";
          }
          return true;
        });
    // What the shadow finds once the request is over ends nothing, but is counted.
    for (bool over = false; outcome.by.empty() && !over; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      over = engine->stats().guard.shadow.waiting == 0;
      if (engine->stats().guard.shadow.outside > 0) outcome.by = "shadow";
    }
  }
  running.model->planned.plan.planted.reset();
  running.runner->reset();
  return Ok{};
}

// `rows` of each launch; 0: all.
Result<CheckReport> Matrix::check(ModelRunner& runner, int64_t rows, int steps) {
  std::vector<int32_t> ids = check_prompt(runner.config(), 1 << 20);
  ids.resize(static_cast<size_t>(runner.config().index_topk + kBeyondTopk));
  return check_ops(
      runner, registry_, &pool_,
      {.ids = ids, .decode_steps = steps, .sequences = 1, .rows_judged = rows, .first_only = true, .paths = false});
}

Result<Outcome> Matrix::plant(const Case& one, Running& running) {
  Outcome outcome{.planted = one};
  std::shared_ptr<const FaultLog> log;
  if (one.lying.empty()) {
    PLUMB_TRY(log, plant_faults({one.fault}, registry_, *running.model));
  }
  PLUMB_TRY(CheckReport report, check(*running.runner, kRowsFirst, kStepsFirst));
  if (report.findings.empty()) {
    PLUMB_TRY(report, check(*running.runner, 0, kStepsMost));
  }
  outcome.quick = verify(running, false);
  if (outcome.quick.empty() && !report.findings.empty()) outcome.full = verify(running, true);
  running.model->planned.plan.planted.reset();
  outcome.launches = log ? log->launches : 1;
  outcome.rows_changed = log ? log->rows_changed : 0;
  outcome.found = !report.findings.empty();
  if (one.lying.empty()) PLUMB_TRY_STATUS(serve(one, running, outcome));
  if (!outcome.found) return outcome;
  const OpFinding& verdict = report.findings.front();
  outcome.verdict = verdict.place;
  outcome.right_op = verdict.place == one.place;
  outcome.right_layer = verdict.layer == one.layer;
  return outcome;
}

// Nothing is found where nothing is wrong; what the neighbours say then.
Status Matrix::run_clean(const Setting& setting, Running& running) {
  PLUMB_TRY(const CheckReport clean, check(*running.runner, 0, kStepsMost));
  if (!clean.passes()) return Error{Code::Verification, setting.name() + " fails without a fault", clean.verdict(), {}};
  if (const std::string failed = verify(running, false); !failed.empty())
    return Error{Code::Verification, setting.name() + " is not verified without a fault", failed, {}};
  {
    PLUMB_TRY(const auto engine, Engine::start(running.runner->forward_state(), engine_options(registry_, 48)));
    PLUMB_TRY(clean_, neighbours(*engine, nullptr));
  }
  return Ok{};
}

Status Matrix::run_setting(const Setting& setting, const std::string& folder) {
  PLUMB_TRY(Running running, open(folder, setting, nullptr, registry_));
  if (!list_) PLUMB_TRY_STATUS(run_clean(setting, running));
  const std::vector<Case> cases = cases_of(running.runner->planned().plan, index_);
  std::printf("%s: %zu cases, one in %zu is run\n", setting.name().c_str(), cases.size(), every_);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    if ((i + 3 * index_) % every_ != 0) continue;  // of another kind in each setting
    if (list_) {
      std::printf("%s at %s, %s\n", one.kind().c_str(), one.place.c_str(), one.phase().c_str());
      continue;
    }
    Running liar;
    if (!one.lying.empty()) {
      PLUMB_TRY(liar, open(folder, setting, &one, registry_));
    }
    PLUMB_TRY(Outcome outcome, plant(one, one.lying.empty() ? running : liar));
    outcome.setting = setting.name();
    tell(outcome);
    outcomes_.push_back(std::move(outcome));
  }
  return Ok{};
}

Status Matrix::run() {
  const Setting setting = settings()[index_];
  const std::string folder = folder_of(setting);
  absent_ = folder.empty();
  return absent_ ? Status(Ok{}) : run_setting(setting, folder);
}

// All settings, two at a time; what went wrong, if anything did.
std::string run_all(std::deque<Matrix>& parts) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::string wrong;
  const auto work = [&] {
    for (size_t i = next++; i < parts.size(); i = next++) {
      const Status status = parts[i].run();
      const std::lock_guard lock(mutex);
      if (!status) wrong += status.error().to_string() + "\n";
    }
  };
  std::thread other(work);
  work();
  other.join();
  return wrong;
}

int main_of(int argc, char** argv) {
  int every = 1;
  bool list = false;
  std::string doc;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--every") == 0) every = std::max(1, std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--list") == 0) list = true;
    if (std::strcmp(argv[i], "--doc") == 0) doc = argv[i + 1];
  }
  std::deque<Matrix> parts;
  for (size_t i = 0; i < settings().size(); ++i) parts.emplace_back(i, every, list);
  if (const std::string error = run_all(parts); !error.empty()) {
    std::fprintf(stderr, "error: %s", error.c_str());
    return 1;
  }
  std::vector<Outcome> outcomes;
  std::vector<std::string> absent;
  for (size_t i = 0; i < parts.size(); ++i) {
    outcomes.insert(outcomes.end(), parts[i].outcomes().begin(), parts[i].outcomes().end());
    if (parts[i].absent()) absent.push_back(settings()[i].name());
  }
  if (const Status status = run_rank_faults(every, list, outcomes, absent); !status) {
    std::fprintf(stderr, "error: %s\n", status.error().to_string().c_str());
    return 1;
  }
  if (list) return 0;
  const std::string page = markdown(outcomes, absent, every);
  if (!doc.empty()) std::ofstream(doc) << page;
  std::fputs(page.substr(0, page.find("\n## ")).c_str(), stdout);
  const std::vector<std::string> wrong = complaints(outcomes, every == 1 && absent.empty());
  for (const std::string& line : wrong) std::printf("FAILED %s\n", line.c_str());
  std::printf("%zu passed, %zu failed\n", outcomes.size(), wrong.size());
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace plumb::matrix

int main(int argc, char** argv) { return plumb::matrix::main_of(argc, argv); }
