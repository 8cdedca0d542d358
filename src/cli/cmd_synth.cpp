// plumb synth: a random checkpoint of any configuration and format.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_source.h"
#include "cli/cli.h"
#include "cli/model_options.h"
#include "cli/value_checks.h"
#include "model/synth.h"

namespace plumb {
namespace {

struct SynthCommand {
  std::string config{};
  std::string out{};
  std::string format = "bf16";
  std::string tokenizer{};
  bool experts_only = false, stacked = false, no_input_scales = false, no_mtp = false;
  uint64_t seed = 0;
  double shard_gb = 5.0;
  int threads = 0;
};

Status synth(const SynthCommand& command, const CliContext& context) {
  if (command.format == "bf16" && (command.experts_only || command.no_input_scales))
    return Error{
        Code::Unsupported,
        command.experts_only ? "--experts-only has nothing to act on" : "--no-input-scales has nothing to act on",
        "bf16 quantises nothing",
        {"a quantised --format"}};
  std::error_code ignored;
  std::filesystem::path config = command.config;
  if (std::filesystem::is_directory(config, ignored)) config /= "config.json";
  SynthSpec spec{.format = *synth_format_from_name(command.format),
                 .experts_only = command.experts_only,
                 .stacked_experts = command.stacked,
                 .input_scales = !command.no_input_scales,
                 .mtp = !command.no_mtp,
                 .seed = command.seed,
                 .max_shard_bytes = static_cast<uint64_t>(command.shard_gb * 1e9)};
  PLUMB_TRY(spec.config_json, read_text_file(config, 16u << 20));
  if (!command.tokenizer.empty()) {
    PLUMB_TRY(const ModelSource source, resolve_model(command.tokenizer, context.hf_home));
    spec.tokenizer_from = source.folder;
  }
  ThreadPool pool(command.threads);
  LoadBar bar;
  spec.progress = [&](uint64_t done, uint64_t total) {
    bar.update({"synth", static_cast<int64_t>(done), static_cast<int64_t>(total)});
  };
  PLUMB_TRY_STATUS(synthesize(spec, command.out, pool));
  bar.finish();
  std::printf("%s\n", command.out.c_str());
  return Ok{};
}

}  // namespace

void add_synth_command(CLI::App& app, CliContext& context, int& exit_code) {
  auto command = std::make_shared<SynthCommand>();
  CLI::App* cmd = app.add_subcommand("synth", "Write a random checkpoint of a given configuration and format");
  cmd->add_option("config", command->config, "config.json, or a folder that has one")
      ->required()
      ->check(CLI::ExistingPath);
  cmd->add_option("--out", command->out, "Folder to write")->required();
  cmd->add_option("--format", command->format, "bf16, fp8, fp8-ue8m0, fp8-tensor, ct-fp8-block, nvfp4 or ct-nvfp4")
      ->check(CLI::IsMember({"bf16", "fp8", "fp8-ue8m0", "fp8-tensor", "ct-fp8-block", "nvfp4", "ct-nvfp4"}));
  cmd->add_flag("--experts-only", command->experts_only, "Quantise nothing but the routed experts");
  cmd->add_flag("--stacked-experts", command->stacked, "One tensor for all experts of a layer (bf16)");
  cmd->add_flag("--no-input-scales", command->no_input_scales, "Leave out static activation scales");
  cmd->add_flag("--no-mtp", command->no_mtp, "Leave out the next-n layer that the configuration counts");
  cmd->add_option("--tokenizer", command->tokenizer, "Model whose tokenizer and template are copied");
  cmd->add_option("--seed", command->seed, "Same seed, same weights")->check(unsigned_number());
  cmd->add_option("--shard-gb", command->shard_gb, "Largest file, in 10^9 bytes")->check(number_from(0.001, 1000));
  cmd->add_option("--threads", command->threads, "Worker threads; 0 takes every core")->check(thread_count());
  cmd->callback([command, &context, &exit_code] {
    const Status status = synth(*command, context);
    if (!status) exit_code = report(status.error());
  });
}

}  // namespace plumb
