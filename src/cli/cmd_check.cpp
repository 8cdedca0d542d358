// plumb check: every op of the plan against the reference on the same inputs, and what works where one fails.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "checkpoint/json_file.h"
#include "checkpoint/model_source.h"
#include "cli/build_info.h"
#include "cli/cli.h"
#include "cli/fault_options.h"
#include "cli/model_options.h"
#include "cli/token_input.h"
#include "guard/capture.h"
#include "guard/check_report.h"
#include "text/tokenizer.h"

namespace plumb {
namespace {

constexpr int64_t kRowsOfOtherCaches = 4;          // judged of each launch
constexpr int64_t kSmallBytes = int64_t{1} << 30;  // of weights: what the reference runs in seconds

struct CheckCommand {
  ModelOptions model{};
  std::string prompt{}, ids_file{}, capture{}, report{};
  int decode_steps = 4, sequences = 8;
  int64_t rows = -1;
  bool no_drift = false, no_caches = false;
};

int64_t weight_bytes(const OpenedModel& model) {
  int64_t bytes = 0;
  for (const WeightSource* source : model.map.all()) bytes += static_cast<int64_t>(source->data->info.bytes());
  return bytes;
}

Result<std::vector<int32_t>> prompt_of(const CheckCommand& command, const ModelSource& source, const OpenedModel& model,
                                       bool small) {
  if (!command.ids_file.empty()) return read_ids(command.ids_file);
  if (!command.capture.empty()) {
    PLUMB_TRY(std::vector<int32_t> ids, captured_tokens(command.capture));
    if (ids.size() > 1) return ids;
  }
  if (command.prompt.empty()) {
    const int64_t longest = command.model.plan.max_context > 0 ? command.model.plan.max_context - command.decode_steps
                                                               : model.config.max_position_embeddings;
    return check_prompt(model.config, small ? longest : std::min<int64_t>(longest, 64));
  }
  PLUMB_TRY(const Tokenizer tokenizer, Tokenizer::load(source.folder));
  return tokenizer.encode(command.prompt);
}

RunnerOptions runner_options(const CheckCommand& command, size_t prompt, LoadBar& bar) {
  RunnerOptions options{.plan = command.model.plan, .threads = command.model.threads};
  options.load.progress = [&bar](const LoadProgress& progress) { bar.update(progress); };
  options.plan.mtp = "off";
  options.plan.max_sequences = command.sequences;
  if (options.plan.max_context == 0) options.plan.max_context = static_cast<int>(prompt) + command.decode_steps;
  options.plan.max_rows = std::min(512, std::max(static_cast<int>(prompt), command.sequences));
  return options;
}

const char* flag_of(KvFormat kv) { return kv == KvFormat::F32 ? "f32" : kv == KvFormat::Bf16 ? "bf16" : "fp8"; }

// The prompt and its decode steps with the other types of KV cache: is the fault one of the cache's?
Result<std::vector<CacheTrial>> try_caches(const CheckCommand& command, const ModelSource& source,
                                           const Registry& registry, ThreadPool& pool, ModelRunner& runner,
                                           const std::vector<int32_t>& ids) {
  std::vector<CacheTrial> trials;
  const std::string planned = flag_of(runner.planned().kv.latent);
  for (const char* kv : {"f32", "bf16", "fp8"}) {
    if (planned == kv) continue;
    LoadBar bar;
    RunnerOptions options = runner_options(command, ids.size(), bar);
    options.plan.kv = kv;
    options.loaded = fault_planter(command.model, registry);
    const Result<std::unique_ptr<ModelRunner>> opened = ModelRunner::open(source.folder, registry, options);
    if (!opened) {
      trials.push_back({.kv = kv, .verdict = opened.error().to_string()});
      continue;
    }
    ModelRunner& other = **opened;
    PLUMB_TRY(const CheckReport report, check_ops(other, registry, &pool,
                                                  {.ids = ids,
                                                   .decode_steps = command.decode_steps,
                                                   .sequences = 1,
                                                   .rows_judged = kRowsOfOtherCaches,
                                                   .paths = false}));
    PLUMB_TRY(const Divergence apart, measure_divergence(runner, other, ids, static_cast<int>(ids.size())));
    trials.push_back(
        {.kv = kv, .passes = report.passes(), .verdict = report.verdict(), .divergence = apart.to_string()});
  }
  return trials;
}

Result<std::optional<LayerDrift>> drift_of(const CheckCommand& command, const ModelSource& source,
                                           const Registry& registry, ModelRunner& runner,
                                           const std::vector<int32_t>& ids) {
  LoadBar bar;
  RunnerOptions exact = runner_options(command, ids.size(), bar);
  exact.plan.backend = "reference";
  exact.plan.isa = "auto";
  exact.plan.pinned.clear();
  const KvGeometry& kv = runner.planned().kv;  // the same caches: their rounding is no drift of the kernels
  exact.plan.kv = flag_of(kv.latent);
  exact.plan.index_keys = kv.index_key == IndexKeyFormat::F32    ? "f32"
                          : kv.index_key == IndexKeyFormat::Bf16 ? "bf16"
                                                                 : "fp8";
  PLUMB_TRY(const auto reference, ModelRunner::open(source.folder, registry, exact));
  PLUMB_TRY(LayerDrift drift, measure_drift(*reference, runner, ids));
  return std::optional(std::move(drift));
}

Status run(CheckCommand& command, const CliContext& context) {
  PLUMB_TRY_STATUS(finish_model_options(command.model, context));
  if (command.model.plan.mtp == "on")
    return Error{Code::Unsupported, "--mtp on has nothing to act on", "the model itself is checked", {"--mtp off"}};
  PLUMB_TRY(const ModelSource source, resolve_model(command.model.model, context.hf_home));
  PLUMB_TRY(const OpenedModel opened, open_model(source.folder));
  const bool small = weight_bytes(opened) <= kSmallBytes;
  PLUMB_TRY(const std::vector<int32_t> ids, prompt_of(command, source, opened, small));
  if (ids.size() < 2) return Error{Code::Usage, "a check needs two tokens at least", "", {"a longer --prompt"}};
  const Registry registry = make_registry();
  LoadBar bar;
  RunnerOptions options = runner_options(command, ids.size(), bar);
  options.loaded = fault_planter(command.model, registry);
  PLUMB_TRY(const auto runner, ModelRunner::open(source.folder, registry, options));
  bar.finish();
  ThreadPool pool(command.model.threads);
  PLUMB_TRY(CheckReport report, check_ops(*runner, registry, &pool,
                                          {.ids = ids,
                                           .decode_steps = command.decode_steps,
                                           .sequences = command.sequences,
                                           .rows_judged = command.rows >= 0 ? command.rows
                                                          : small           ? 0
                                                                            : 4}));
  if (!command.capture.empty()) {
    const LoadedModel& model = runner->model();
    PLUMB_TRY(const Capture capture,
              read_capture(command.capture, model.planned.plan, registry, model.planned.sites, model.weights));
    report = with_capture(
        check_record(model.planned.plan, registry, &pool, capture.record, witness_device(runner->executor())),
        std::move(report));
  }
  if (small && !command.no_caches) {
    PLUMB_TRY(report.caches, try_caches(command, source, registry, pool, *runner, ids));
  }
  std::optional<LayerDrift> drift;
  if (small && !command.no_drift) {
    PLUMB_TRY(drift, drift_of(command, source, registry, *runner, ids));
  }
  const CheckPage page{
      .model = source.name, .build = build_id(), .plan = runner->planned().plan, .report = report, .drift = drift};
  std::fputs(check_text(page).c_str(), stdout);
  if (!command.report.empty()) PLUMB_TRY_STATUS(write_text_file(command.report, check_html(page)));
  if (report.passes()) return Ok{};
  return Error{Code::Verification, source.name + " does not compute what it should", report.verdict(), report.flags()};
}

}  // namespace

void add_check_command(CLI::App& app, CliContext& context, int& exit_code) {
  auto command = std::make_shared<CheckCommand>();
  CLI::App* sub = app.add_subcommand(
      "check", "Compare every op with the reference on the same inputs; name the first at fault and what works");
  add_model_options(*sub, command->model);
  auto* prompt = sub->add_option("--prompt", command->prompt, "Text to run; default: tokens beyond index_topk");
  auto* ids = sub->add_option("--ids", command->ids_file, "File with token ids: a JSON list or plain numbers");
  auto* capture =
      sub->add_option("--capture", command->capture,
                      "Capture of an incident: its op is judged first; the prompt is its own where it holds token ids");
  prompt->excludes(ids)->excludes(capture);
  ids->excludes(capture);
  sub->add_option("--report", command->report, "HTML page to write");
  sub->add_option("--decode-steps", command->decode_steps, "Tokens at the end that are also decoded one by one")
      ->check(CLI::Range(1, 4096));
  sub->add_option("--sequences", command->sequences, "Largest batch; every smaller one is decoded too")
      ->check(CLI::Range(1, 256));
  sub->add_option("--rows", command->rows, "Rows of each launch that are judged; 0: all; default: all of a small model")
      ->check(CLI::Range(0, 1 << 20));
  sub->add_flag("--no-caches", command->no_caches, "Leave out the runs with other types of KV cache");
  sub->add_flag("--no-drift", command->no_drift, "Leave out the run of the reference backend beside it");
  sub->callback([command, &context, &exit_code] {
    if (Status status = run(*command, context); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb
