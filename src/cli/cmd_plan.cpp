// plumb plan: every kernel and flag this model would run with, and the memory it takes. Reads headers only.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/json_file.h"
#include "checkpoint/model_source.h"
#include "cli/cli.h"
#include "cli/service.h"
#include "model/scale_out.h"
#include "model/synth.h"

namespace plumb {
namespace {

struct PlanCommand {
  ModelOptions model{};
  EngineFlags engine{};
  bool json = false;
  std::string device = "cpu";
  std::string weights{};
  ScaleQuestion scale{.machines = 0};
  int gpus_per_node = 8;
  std::string all_reduce{};
};

// A model that is not here: its configuration, and the headers that a checkpoint of that format would have.
Result<OpenedModel> imagine_model(const std::string& config, const std::string& format) {
  std::error_code ignored;
  std::filesystem::path path = config;
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
  SynthSpec spec{.format = *synth_format_from_name(format), .experts_only = format.find("nvfp4") != std::string::npos};
  PLUMB_TRY(spec.config_json, read_text_file(path, 16u << 20));
  PLUMB_TRY(SynthHeaders headers, synth_headers(spec));
  PLUMB_TRY(const nlohmann::json parsed,
            parse_json(headers.config_json, path.string(), {.depth = 32, .bytes = 64u << 20}));
  OpenedModel model;
  PLUMB_TRY(model.config, parse_model_config(parsed));
  PLUMB_TRY(model.quant, parse_quant_config(parsed, nullptr));
  PLUMB_TRY(Checkpoint checkpoint, Checkpoint::from_headers(std::move(headers.tensors)));
  model.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  PLUMB_TRY(model.map, map_weights(model.config, *model.checkpoint, model.quant));
  return model;
}

Result<OpenedModel> find_model(const PlanCommand& command, const CliContext& context) {
  if (!command.weights.empty()) return imagine_model(command.model.model, command.weights);
  PLUMB_TRY(const ModelSource source, resolve_model(command.model.model, context.hf_home));
  return open_model(source.folder);
}

// --nodes: what many machines would do, calculated.
Status run_scale(const PlanCommand& command, const OpenedModel& model, const DeviceInfo& device) {
  PLUMB_TRY(Machine machine, machine_of(command.device, device.memory_bytes, command.gpus_per_node));
  if (!command.all_reduce.empty()) {
    PLUMB_TRY(machine.inside, fitted_link(command.all_reduce, command.gpus_per_node));
  }
  const std::vector<ScaleLayout> layouts =
      scale_out(model.config, model.map, cache_geometry(model.config, command.model.plan), machine, command.scale);
  std::fputs(scale_table(layouts, machine, command.scale).c_str(), stdout);
  return Ok{};
}

Status run(PlanCommand& command, const CliContext& context) {
  PLUMB_TRY_STATUS(finish_service_options(command.model, command.engine, context));
  PLUMB_TRY(DeviceInfo device, find_planned_device(command.device, command.model.plan));
  if (!device.is_gpu()) device.memory_bytes /= command.model.plan.tp;  // one machine's, which all ranks share
  PLUMB_TRY(OpenedModel model, find_model(command, context));
  if (command.scale.machines > 0) return run_scale(command, model, device);
  const Registry registry = make_registry();
  PLUMB_TRY(PlannedModel planned, plan_opened(model, registry, device, command.model.plan));
  add_engine_flags(command.model, command.engine, planned.plan);
  if (!command.weights.empty())
    planned.plan.notes.push_back("there is no checkpoint: headers as plumb synth writes them in " + command.weights);
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
  sub->add_flag("--json", command->json, "The whole plan as JSON: refused candidates and reasons, contracts, memory");
  command->model.options.push_back(sub->add_option("--device", command->device,
                                                   "cpu, cuda, a machine that is not here (h200, h100, b200, "
                                                   "rtx-pro-6000, rtx-5090), or a JSON file with a profile; "
                                                   "a list has one for each rank"));
  sub->add_option(
         "--weights", command->weights,
         "MODEL is a config.json alone: plan for a checkpoint of this format (bf16, fp8, fp8-ue8m0, nvfp4, ...)")
      ->check(CLI::IsMember({"bf16", "fp8", "fp8-ue8m0", "fp8-tensor", "ct-fp8-block", "nvfp4", "ct-nvfp4"}));
  CLI::Option* nodes =
      sub->add_option("--nodes", command->scale.machines,
                      "Calculate instead what so many machines of --device would do, divided in all usual ways")
          ->check(CLI::Range(1, 1024));
  for (const char* one_plan : {"--json", "--tp", "--expert-parallel"}) nodes->excludes(sub->get_option(one_plan));
  const auto with_nodes = [&](const char* name, auto& value, const char* text) {
    return sub->add_option(name, value, text)->needs(nodes);
  };
  with_nodes("--gpus-per-node", command->gpus_per_node, "GPUs of a machine")->check(CLI::Range(1, 64));
  with_nodes("--decode-context", command->scale.context, "Tokens of a sequence while it decodes")
      ->check(CLI::Range(1, 1 << 24));
  with_nodes("--prompt-tokens", command->scale.prompt, "Of a request")->check(CLI::Range(1, 1 << 24));
  with_nodes("--answer-tokens", command->scale.output, "Of a request")->check(CLI::Range(1, 1 << 24));
  with_nodes("--tpot-ms", command->scale.tpot_ms, "Slowest decode that is accepted, a token")
      ->check(CLI::Range(0.1, 1e4));
  with_nodes("--all-reduce", command->all_reduce,
             "Measured all-reduce times among a machine's GPUs, BYTES:MICROSECONDS,..., to fit its links' model to");
  sub->callback([command, &context, &exit_code] {
    if (Status status = run(*command, context); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb
