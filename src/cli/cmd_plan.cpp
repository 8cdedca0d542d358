// plumb plan: every kernel and flag this model would run with. Reads headers only.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/model_source.h"
#include "cli/cli.h"
#include "cli/service.h"

namespace plumb {
namespace {

struct PlanCommand {
  ModelOptions model{};
  EngineFlags engine{};
  bool json = false;
  std::string device = "cpu";
};

Status run(PlanCommand& command, const CliContext& context) {
  PLUMB_TRY_STATUS(finish_service_options(command.model, command.engine, context));
  if (command.device != "cpu")
    return Error{Code::Unsupported,
                 "--device " + command.device + " cannot be honoured",
                 "plans are made for the CPU of this machine so far",
                 {"--device cpu"}};
  PLUMB_TRY(const ModelSource source, resolve_model(command.model.model, context.hf_home));
  const Registry registry = make_registry();
  PLUMB_TRY(OpenedModel model, open_model(source.folder));
  PLUMB_TRY(PlannedModel planned, plan_opened(model, registry, detect_cpu(), command.model.plan));
  add_engine_flags(command.model, command.engine, planned.plan);
  if (command.json)
    std::printf("%s\n", planned.plan.to_json().dump(1).c_str());
  else
    std::fputs(planned.plan.to_table().c_str(), stdout);
  return Ok{};
}

}  // namespace

void add_plan_command(CLI::App& app, CliContext& context, int& exit_code) {
  auto command = std::make_shared<PlanCommand>();
  CLI::App* sub = app.add_subcommand("plan", "Show every kernel and flag this model would run with; loads no weights");
  add_model_options(*sub, command->model);
  add_engine_options(*sub, command->model, command->engine);
  sub->add_flag("--json", command->json, "The whole plan as JSON, refused candidates and reasons included");
  sub->add_option("--device", command->device, "Device to plan for: cpu");
  sub->callback([command, &context, &exit_code] {
    if (Status status = run(*command, context); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb
