// plumb replay: the op of a capture once more, on the reference and on every kernel that fits.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/thread_pool.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_source.h"
#include "cli/build_info.h"
#include "cli/cli.h"
#include "cli/guard_flags.h"
#include "cli/model_options.h"
#include "device/compute_device.h"
#include "guard/capture.h"
#include "guard/check_report.h"

namespace plumb {
namespace {

struct ReplayCommand {
  ModelOptions model{};
  std::string capture{}, report{};
};

// A file, or an incident's id, whose file lies where servers write captures unless told otherwise.
Result<std::filesystem::path> find_capture(const std::string& asked) {
  std::error_code ignored;
  if (std::filesystem::exists(asked, ignored)) return std::filesystem::path(asked);
  const std::filesystem::path folder = default_capture_folder();
  const std::filesystem::path path = folder / (asked + std::string(kCaptureSuffix));
  if (!folder.empty() && std::filesystem::exists(path, ignored)) return path;
  return Error{Code::NotFound,
               "no capture " + asked,
               "there is no such file, and no " + path.string(),
               {"the path that the server's log gives after 'capture written'", "a file of its --capture-dir"}};
}

Status run(ReplayCommand& command, const CliContext& context) {
  PLUMB_TRY(const std::filesystem::path file, find_capture(command.capture));
  PLUMB_TRY_STATUS(finish_model_options(command.model, context));
  PLUMB_TRY(const ModelSource source, resolve_model(command.model.model, context.hf_home));
  const Registry registry = make_registry();
  ThreadPool pool(command.model.threads);
  LoadBar bar;
  PLUMB_TRY(ComputeDevice device, open_device(command.model.plan.backend, 0, pool));
  LoadModelOptions load{.device = device.info, .plan = command.model.plan, .load = {}};
  load.load.memory = device.memory;
  load.load.stream = &device.stream;
  load.load.progress = [&bar](const LoadProgress& progress) { bar.update(progress); };
  PLUMB_TRY(const auto model, load_model(source.folder, registry, pool, load));
  bar.finish();
  const Plan& plan = model->planned.plan;
  PLUMB_TRY(Capture capture, read_capture(file, plan, registry, model->planned.sites, model->weights));
  std::printf("%s\n", capture.facts().dump(1).c_str());
  std::optional<WitnessDevice> there;
  if (device.info.is_gpu()) there = WitnessDevice{.memory = device.memory, .stream = device.stream};
  const CheckReport report = check_record(plan, registry, &pool, capture.record, there);
  const std::optional<LayerDrift> none;
  const CheckPage page{.model = source.name, .build = build_id(), .plan = plan, .report = report, .drift = none};
  std::fputs(check_text(page).c_str(), stdout);
  if (!command.report.empty()) PLUMB_TRY_STATUS(write_text_file(command.report, check_html(page)));
  if (report.passes()) return Ok{};
  return Error{Code::Verification, file.string() + " repeats", report.verdict(), report.flags()};
}

}  // namespace

void add_replay_command(CLI::App& app, CliContext& context, int& exit_code) {
  auto command = std::make_shared<ReplayCommand>();
  CLI::App* sub =
      app.add_subcommand("replay", "Run the op of a capture again: the reference, and every kernel that fits");
  sub->add_option("capture", command->capture, "Incident's id, or the file that the server wrote")->required();
  add_model_options(*sub, command->model);
  sub->add_option("--report", command->report, "HTML page to write");
  sub->callback([command, &context, &exit_code] {
    if (Status status = run(*command, context); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb
