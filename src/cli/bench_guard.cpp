// A pair is the same step twice, once watched and once not, in turn first and second; the figure is the median of the
// ratios of their CPU times. Its 95 % interval comes from order statistics: ranks n/2 -+ 0.98 sqrt(n).
#include "cli/bench_guard.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "checkpoint/model_source.h"
#include "cli/build_info.h"
#include "guard/stream_sentinels.h"
#include "model/buffers.h"
#include "model/runner.h"

namespace plumb {
namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class GuardBench {
 public:
  GuardBench(ModelRunner& runner, const BenchGuardOptions& options)
      : runner_(runner),
        options_(options),
        on_host_(runner.executor().memory().where == Where::Host),
        sentinels_(runner.planned().limits.rows, options.captures),
        in_stream_(sentinels_, runner.forward_state().buffers.report) {}

  Status fill() {
    for (int done = 0; done < options_.context; done += kFill) {
      PLUMB_TRY_STATUS(run(random_rows(std::min(kFill, options_.context - done))));
    }
    return Ok{};
  }

  bool on_host() const { return on_host_; }
  // CPU seconds with and without the sentinels; on a device, seconds until it is done.
  Result<std::pair<double, double>> pair(bool watched_first) {
    const std::vector<RunnerRow> rows = random_rows(options_.chunk);
    std::pair<double, double> seconds;
    for (const bool watched : {watched_first, !watched_first}) {
      for (int s = 0; s < options_.rows; ++s) runner_.truncate(s, options_.context);
      OpObserver& watch = on_host_ ? static_cast<OpObserver&>(sentinels_) : in_stream_;
      Executor& executor = runner_.executor();
      if (watched) executor.add_observer(watch);
      const double begin = now();
      sentinels_.begin_step();
      Status status = run(rows);
      executor.memory().synchronise(executor.stream());
      (watched ? seconds.first : seconds.second) = now() - begin;
      executor.remove_observer(watch);
      PLUMB_TRY_STATUS(std::move(status));
      if (!sentinels_.faults().empty())
        return Error{Code::Verification, "a value that is not finite appeared", "the figures would mean nothing", {}};
    }
    return seconds;
  }

 private:
  static constexpr int kFill = 256;
  double now() const { return seconds_of(on_host_ ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC); }
  std::vector<RunnerRow> random_rows(int each) {
    std::uniform_int_distribution<int32_t> id(0, runner_.config().vocab_size - 1);
    std::vector<RunnerRow> rows;
    for (int s = 0; s < options_.rows; ++s)
      for (int i = 0; i < each; ++i) rows.push_back({.sequence = s, .id = id(random_), .logits = i + 1 == each});
    return rows;
  }
  Status run(const std::vector<RunnerRow>& rows) {
    PLUMB_TRY(const StepOutput output, runner_.step(rows));
    static_cast<void>(output);
    return Ok{};
  }

  ModelRunner& runner_;
  const BenchGuardOptions& options_;
  const bool on_host_;
  Sentinels sentinels_;
  StreamSentinels in_stream_;
  std::mt19937 random_{12345};
};

}  // namespace

Status bench_guard(BenchGuardOptions& options, const CliContext& context) {
  PLUMB_TRY_STATUS(finish_model_options(options.model, context));
  PLUMB_TRY(const ModelSource source, resolve_model(options.model.model, context.hf_home));
  ModelPlanOptions plan = options.model.plan;
  plan.max_sequences = options.rows;
  plan.max_rows = std::max({256 * options.rows, options.rows * options.chunk});
  plan.max_context = options.context + options.chunk;
  plan.mtp = "off";
  const Registry registry = make_registry();
  RunnerOptions runner_options{.plan = plan, .threads = options.model.threads};
  runner_options.load.check_values = false;
  PLUMB_TRY(const std::unique_ptr<ModelRunner> runner, ModelRunner::open(source.folder, registry, runner_options));
  GuardBench bench(*runner, options);
  PLUMB_TRY_STATUS(bench.fill());
  PLUMB_TRY_STATUS([&]() -> Status {  // warm
    for (int i = 0; i < 3; ++i) {     // a device's steps are recorded the second time
      PLUMB_TRY(const auto ignored, bench.pair(true));
      static_cast<void>(ignored);
    }
    return Ok{};
  }());
  std::vector<double> ratios, steps;
  for (int i = 0; i < options.pairs; ++i) {
    PLUMB_TRY(const auto seconds, bench.pair(i % 2 == 0));
    ratios.push_back(seconds.first / seconds.second);
    steps.push_back(seconds.second);
  }
  std::sort(ratios.begin(), ratios.end());
  std::sort(steps.begin(), steps.end());
  const double n = static_cast<double>(options.pairs);
  const auto at = [&](double rank) { return ratios[static_cast<size_t>(std::clamp(rank, 0.0, n - 1))]; };
  const double low = at(std::floor(n / 2 - 0.98 * std::sqrt(n))), middle = at(n / 2),
               high = at(std::ceil(n / 2 + 0.98 * std::sqrt(n)));
  const double step_ms = steps[steps.size() / 2] * 1e3;
  if (options.json)
    std::printf("%s\n", nlohmann::ordered_json{{"bench", "guard"},
                                               {"build", build_id()},
                                               {"model", options.model.model},
                                               {"rows", options.rows},
                                               {"chunk", options.chunk},
                                               {"context", options.context},
                                               {"pairs", options.pairs},
                                               {"captures", options.captures},
                                               {"cpu_ms_per_step", step_ms},
                                               {"ratio", middle},
                                               {"ratio_low", low},
                                               {"ratio_high", high}}
                            .dump()
                            .c_str());
  else
    std::printf(
        "%d sequences x %d rows, context %d: %.2f ms%s a step; with sentinels x %.4f (95 %%: %.4f to %.4f, %d "
        "pairs)\n",
        options.rows, options.chunk, options.context, step_ms, bench.on_host() ? " of CPU" : "", middle, low, high,
        options.pairs);
  return Ok{};
}

}  // namespace plumb
