// Every figure is a median of ratios of pairs: the probe (1 GB read by all cores; on a device, 1 GB zeroed), then one
// step, in the same process.
// The bytes a step must read: every weight outside the experts, the experts its rows chose, the head, and the cache.
#include "cli/bench_decode.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/thread_pool.h"
#include "checkpoint/model_source.h"
#include "cli/build_info.h"
#include "cli/op_times.h"
#include "kernels/cpu/probe.h"
#include "model/runner.h"

namespace plumb {
namespace {

constexpr size_t kProbeBytes = size_t{1} << 30;

double seconds_of(auto&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

int64_t bytes_of(const WeightSource& w) {
  return w ? encoded_data_bytes(w.format, w.n, w.k) + encoded_scale_bytes(w.format, w.n, w.k) : 0;
}
int64_t bytes_of(const MlpSources& m) { return bytes_of(m.gate_proj) + bytes_of(m.up_proj) + bytes_of(m.down_proj); }

// Weights of one layer besides its routed experts.
int64_t fixed_bytes(const LayerSources& l) {
  int64_t bytes = 0;
  for (const WeightSource* w : {&l.q_a_proj, &l.q_b_proj, &l.kv_a_proj_with_mqa, &l.kv_b_proj, &l.o_proj, &l.gate})
    bytes += bytes_of(*w);
  if (l.indexer) bytes += bytes_of(l.indexer->wq_b) + bytes_of(l.indexer->wk) + bytes_of(l.indexer->weights_proj);
  if (l.mlp) bytes += bytes_of(*l.mlp);
  if (l.shared_experts) bytes += bytes_of(*l.shared_experts);
  return bytes;
}

struct Demand {
  int64_t weights = 0, head = 0, cache = 0;
  int64_t total() const { return weights + head + cache; }
};

class DecodeBench {
 public:
  DecodeBench(ModelRunner& runner, const BenchDecodeOptions& options) : runner_(runner), options_(options) {}

  Status fill();
  Result<double> step();
  // Which experts one more step chooses, seen through taps.
  Result<Demand> demand();

 private:
  std::vector<RunnerRow> next_rows();
  ModelRunner& runner_;
  const BenchDecodeOptions& options_;
  std::mt19937 random_{12345};
};

std::vector<RunnerRow> DecodeBench::next_rows() {
  std::uniform_int_distribution<int32_t> id(0, runner_.config().vocab_size - 1);
  std::vector<RunnerRow> rows;
  rows.reserve(static_cast<size_t>(options_.rows));
  for (int s = 0; s < options_.rows; ++s) rows.push_back({.sequence = s, .id = id(random_), .logits = true});
  return rows;
}

Status DecodeBench::fill() {
  std::uniform_int_distribution<int32_t> id(0, runner_.config().vocab_size - 1);
  const int chunk = runner_.planned().limits.rows;
  for (int s = 0; s < options_.rows; ++s) {
    for (int done = 0; done < options_.context; done += chunk) {
      std::vector<RunnerRow> rows;
      for (int i = done; i < std::min(done + chunk, options_.context); ++i)
        rows.push_back({.sequence = s, .id = id(random_)});
      PLUMB_TRY(const StepOutput output, runner_.step(rows));
      static_cast<void>(output);
    }
  }
  return Ok{};
}

Result<double> DecodeBench::step() {
  const std::vector<RunnerRow> rows = next_rows();
  Status status = Ok{};
  const double seconds = seconds_of([&] {
    Result<StepOutput> output = runner_.step(rows);
    if (!output) status = output.error();
    runner_.executor().memory().synchronise(runner_.executor().stream());
  });
  PLUMB_TRY_STATUS(std::move(status));
  return seconds;
}

Result<Demand> DecodeBench::demand() {
  std::vector<int64_t> chosen(runner_.model().opened.map.layers.size(), 0);
  runner_.executor().set_tap([&](std::string_view name, const Tensor& value) {
    if (!name.starts_with("layers.") || !name.ends_with(".router.experts")) return;
    std::set<int32_t> distinct;
    for (int64_t r = 0; r < value.dim(0); ++r)
      for (int64_t i = 0; i < value.dim(1); ++i) distinct.insert(value.row_i32(r)[i]);
    chosen[static_cast<size_t>(std::stoi(std::string(name.substr(7))))] = static_cast<int64_t>(distinct.size());
  });
  PLUMB_TRY(const double seconds, step());
  static_cast<void>(seconds);
  runner_.executor().set_tap({});
  const WeightMap& map = runner_.model().opened.map;
  const ModelConfig& config = runner_.config();
  const KvGeometry& kv = runner_.planned().kv;
  Demand d{.head = bytes_of(map.lm_head)};
  for (size_t i = 0; i < map.layers.size(); ++i) {
    d.weights += fixed_bytes(map.layers[i]);
    if (!map.layers[i].experts.empty()) d.weights += chosen[i] * bytes_of(map.layers[i].experts.front());
    const int64_t selected = std::min<int64_t>(options_.context, config.index_topk);
    d.cache += options_.rows * selected * kv.latent_row_bytes();
    if (map.layers[i].indexer && options_.context > config.index_topk)
      d.cache += options_.rows * int64_t{options_.context} * kv.index_page_bytes() / kv.page_tokens;
  }
  return d;
}

void print(const BenchDecodeOptions& o, const Demand& d, double ratio, double bandwidth, double step_seconds) {
  if (o.json) {
    std::printf("%s\n", nlohmann::ordered_json{{"bench", "decode"},
                                               {"build", build_id()},
                                               {"model", o.model.model},
                                               {"rows", o.rows},
                                               {"context", o.context},
                                               {"pairs", o.pairs},
                                               {"bytes", d.total()},
                                               {"read_gb_per_s", bandwidth / 1e9},
                                               {"step_ms", step_seconds * 1e3},
                                               {"share_of_bandwidth", ratio}}
                            .dump()
                            .c_str());
    return;
  }
  std::printf("rows %d, context %d: reads %.1f MB (weights %.1f, head %.1f, cache %.1f)\n", o.rows, o.context,
              static_cast<double>(d.total()) / 1e6, static_cast<double>(d.weights) / 1e6,
              static_cast<double>(d.head) / 1e6, static_cast<double>(d.cache) / 1e6);
  std::printf("step %.2f ms (median of %d), probe %.1f GB/s, bytes over bandwidth %.1f %% of the step\n",
              step_seconds * 1e3, o.pairs, bandwidth / 1e9, ratio * 100);
}

}  // namespace

Status bench_decode(BenchDecodeOptions& options, const CliContext& context) {
  PLUMB_TRY_STATUS(finish_model_options(options.model, context));
  PLUMB_TRY(const ModelSource source, resolve_model(options.model.model, context.hf_home));
  ModelPlanOptions plan = options.model.plan;
  plan.max_sequences = options.rows;
  plan.max_rows = std::max(512, options.rows);
  plan.max_context = options.context + options.pairs + 8;
  plan.mtp = "off";
  const Registry registry = make_registry();
  LoadBar bar;
  RunnerOptions runner_options{.plan = plan, .threads = options.model.threads};
  runner_options.load.check_values = false;
  runner_options.load.progress = [&bar](const LoadProgress& p) { bar.update(p); };
  PLUMB_TRY(const std::unique_ptr<ModelRunner> runner, ModelRunner::open(source.folder, registry, runner_options));
  bar.finish();
  DecodeBench bench(*runner, options);
  PLUMB_TRY_STATUS(bench.fill());
  PLUMB_TRY(const Demand demand, bench.demand());
  ThreadPool pool(options.model.threads);
  const Memory& memory = runner->executor().memory();
  Stream& stream = runner->executor().stream();
  PLUMB_TRY(const auto probe, memory.allocate(kProbeBytes, "the bandwidth probe"));
  if (memory.where == Where::Host) std::fill_n(probe.get(), kProbeBytes, std::byte{1});
  std::vector<double> ratios, bandwidths, steps;
  for (int i = 0; i < options.pairs; ++i) {
    uint64_t sum = 0;
    const double bandwidth = static_cast<double>(kProbeBytes) / seconds_of([&] {
                               if (memory.where == Where::Host) {
                                 sum = cpu::read_all(probe.get(), kProbeBytes, pool);
                               } else {
                                 memory.clear(probe.get(), kProbeBytes, stream);
                                 memory.synchronise(stream);
                               }
                             });
    PLUMB_CHECK(sum != 1, "the probe read something else");
    PLUMB_TRY(const double seconds, bench.step());
    ratios.push_back(static_cast<double>(demand.total()) / bandwidth / seconds);
    bandwidths.push_back(bandwidth);
    steps.push_back(seconds);
  }
  print(options, demand, median(ratios), median(bandwidths), median(steps));
  if (!options.ops) return Ok{};
  OpTimes times;
  runner->executor().add_observer(times);
  PLUMB_TRY(const double seconds, bench.step());
  runner->executor().remove_observer(times);
  static_cast<void>(seconds);
  std::fputs(times.table().c_str(), stdout);
  return Ok{};
}

}  // namespace plumb
