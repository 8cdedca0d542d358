// plumb quantize: a BF16 checkpoint rounded to FP8 blocks or NVFP4.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "checkpoint/model_source.h"
#include "checkpoint/quantize.h"
#include "cli/cli.h"
#include "cli/model_options.h"
#include "cli/value_checks.h"

namespace plumb {
namespace {

struct QuantizeCommand {
  std::string model{};
  std::string out{};
  std::string to{};
  std::string calibration{};
  double shard_gb = 5.0;
  int threads = 0;
};

const std::map<std::string, QuantizeTo> kTargets{
    {"fp8", QuantizeTo::Fp8}, {"fp8-ue8m0", QuantizeTo::Fp8Ue8m0}, {"nvfp4", QuantizeTo::Nvfp4}};

Status quantize(const QuantizeCommand& command, const CliContext& context) {
  PLUMB_TRY(const ModelSource source, resolve_model(command.model, context.hf_home));
  ThreadPool pool(command.threads);
  LoadBar bar;
  QuantizeOptions options{.source = source.folder,
                          .destination = command.out,
                          .to = kTargets.at(command.to),
                          .max_shard_bytes = static_cast<uint64_t>(command.shard_gb * 1e9)};
  if (!command.calibration.empty()) options.calibration = command.calibration;
  options.progress = [&](uint64_t done, uint64_t total) {
    bar.update({"quantize", static_cast<int64_t>(done), static_cast<int64_t>(total)});
  };
  PLUMB_TRY_STATUS(quantize_checkpoint(options, pool));
  bar.finish();
  std::printf("%s\n", command.out.c_str());
  return Ok{};
}

}  // namespace

void add_quantize_command(CLI::App& app, CliContext& context, int& exit_code) {
  auto command = std::make_shared<QuantizeCommand>();
  CLI::App* cmd = app.add_subcommand("quantize", "Round a BF16 checkpoint to FP8 blocks or NVFP4 (ModelOpt layout)");
  cmd->add_option("model", command->model, "Model folder or cached name")->required();
  cmd->add_option("--to", command->to, "fp8, fp8-ue8m0 or nvfp4")->required()->check(CLI::IsMember(kTargets));
  cmd->add_option("--out", command->out, "Folder to write")->required();
  cmd->add_option("--calibration", command->calibration,
                  "JSON of largest inputs by module, for input_scale (nvfp4); without it weights only")
      ->check(CLI::ExistingFile);
  cmd->add_option("--shard-gb", command->shard_gb, "Largest file, in 10^9 bytes")->check(number_from(0.001, 1000));
  cmd->add_option("--threads", command->threads, "Worker threads; 0 takes every core")->check(thread_count());
  cmd->callback([command, &context, &exit_code] {
    const Status status = quantize(*command, context);
    if (!status) exit_code = report(status.error());
  });
}

}  // namespace plumb
