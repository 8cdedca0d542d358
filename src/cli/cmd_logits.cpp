// plumb logits: float32 logits of every position and named intermediates, for comparing with anything.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/hash.h"
#include "checkpoint/model_source.h"
#include "checkpoint/safetensors.h"
#include "cli/cli.h"
#include "cli/fault_options.h"
#include "cli/model_options.h"
#include "cli/ranks.h"
#include "cli/token_input.h"
#include "model/runner.h"
#include "model/tap_recorder.h"
#include "text/tokenizer.h"

namespace plumb {
namespace {

struct LogitsCommand {
  ModelOptions model{};
  RankFlags ranks{};
  std::string ids_file{};
  std::string prompt{};
  std::string out{};
  std::string taps{};
  int chunk = 512;
};

Result<std::vector<int32_t>> input_ids(const LogitsCommand& command, const std::filesystem::path& folder) {
  std::vector<int32_t> ids;
  if (!command.ids_file.empty()) {
    PLUMB_TRY(ids, read_ids(command.ids_file));
  } else {
    PLUMB_TRY(const Tokenizer tokenizer, Tokenizer::load(folder));
    PLUMB_TRY(ids, tokenizer.encode(command.prompt));
  }
  if (ids.empty()) return Error{Code::Usage, "there is not one token to run", "", {"--ids FILE", "--prompt TEXT"}};
  return ids;
}

std::vector<std::string> split_names(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream in(list);
  for (std::string name; std::getline(in, name, ',');)
    if (!name.empty()) names.push_back(name == "all" ? "*" : name);
  return names;
}

// Every name asked for must have matched something, so that a misspelt one is no empty success.
Status check_taps(const std::vector<std::string>& wanted, const TapRecorder& taps) {
  for (const std::string& name : wanted) {
    bool found = false;
    TapRecorder one({name});
    for (const auto& [tap, entry] : taps.entries()) found |= one.wants(tap);
    if (!found)
      return Error{Code::Usage,
                   "--taps " + name + ": this model computes nothing of that name",
                   "",
                   {"--taps all", "names such as layers.0.attn_output, kv_latent, indexer.topk, router.weights"}};
  }
  return Ok{};
}

Status write_result(const LogitsCommand& command, const std::vector<int32_t>& ids, const std::vector<float>& logits,
                    const TapRecorder& taps, const PlannedModel& planned) {
  const auto rows = static_cast<int64_t>(ids.size());
  std::vector<TensorInfo> tensors{
      {.name = "input_ids", .dtype = DType::I32, .shape = {rows}},
      {.name = "logits", .dtype = DType::F32, .shape = {rows, static_cast<int64_t>(logits.size()) / rows}}};
  std::vector<const void*> data{ids.data(), logits.data()};
  for (const auto& [name, entry] : taps.entries()) {
    if (name == "logits") continue;  // already there, whole
    tensors.push_back(
        {.name = name, .dtype = entry.integer ? DType::I32 : DType::F32, .shape = {entry.rows, entry.columns}});
    data.push_back(entry.integer ? static_cast<const void*>(entry.ints.data()) : entry.floats.data());
  }
  PLUMB_TRY(SafetensorsWriter writer, SafetensorsWriter::create(command.out, tensors,
                                                                {{"plan", planned.plan.fingerprint()},
                                                                 {"numeric_profile", planned.plan.numeric_profile},
                                                                 {"index_topk_fill", "-1"}}));
  for (size_t i = 0; i < tensors.size(); ++i)
    PLUMB_TRY_STATUS(writer.write(data[i], static_cast<size_t>(tensors[i].elements()) * 4));
  return writer.finish();
}

// Known before minutes of loading: the writer makes the file, not its folder.
Status check_out(const std::filesystem::path& out) {
  std::error_code ignored;
  const std::filesystem::path folder = out.has_parent_path() ? out.parent_path() : ".";
  if (!std::filesystem::is_directory(folder, ignored))
    return Error{Code::NotFound, "--out " + out.string() + ": there is no folder " + folder.string(), "", {}};
  if (std::filesystem::is_directory(out, ignored))
    return Error{Code::Usage, "--out " + out.string() + " is a folder", "one file is written", {}};
  if (::access(folder.c_str(), W_OK) != 0)
    return Error{Code::Environment,
                 "--out " + out.string() + ": cannot write into " + folder.string(),
                 std::strerror(errno),
                 {}};
  return Ok{};
}

Status run(LogitsCommand& command, const CliContext& context, int& exit_code) {
  PLUMB_TRY_STATUS(check_out(command.out));
  PLUMB_TRY_STATUS(finish_model_options(command.model, context));
  PLUMB_TRY(RankGroup group, join_ranks(command.model, command.ranks, context));
  if (group.ended) {
    exit_code = *group.ended;
    return Ok{};
  }
  PLUMB_TRY(const ModelSource source, resolve_model(command.model.model, context.hf_home));
  PLUMB_TRY(const std::vector<int32_t> ids, input_ids(command, source.folder));
  const Registry registry = make_registry();
  LoadBar bar;
  RunnerOptions options{.plan = command.model.plan, .threads = command.model.threads};
  if (!group.follows()) options.load.progress = [&bar](const LoadProgress& progress) { bar.update(progress); };
  options.ranks_here = group.ranks_here;
  options.cuda_device = group.cuda_device;
  options.unreachable = group.unreachable;
  options.comm = group.comm.get();
  options.loaded = fault_planter(command.model, registry);
  options.plan.max_rows = std::min(command.chunk, static_cast<int>(ids.size()));
  options.plan.max_sequences = 1;
  if (options.plan.mtp == "on")
    return Error{Code::Unsupported, "--mtp on has nothing to act on", "only the model itself is run", {"--mtp off"}};
  options.plan.mtp = "off";
  if (options.plan.max_context == 0) options.plan.max_context = static_cast<int>(ids.size());
  PLUMB_TRY(const std::unique_ptr<ModelRunner> runner, ModelRunner::open(source.folder, registry, options));
  bar.finish();
  PLUMB_TRY_STATUS(agree(group, "plan", runner->planned().plan.fingerprint()));
  PLUMB_TRY_STATUS(agree(group, "checkpoint", Hash64().add(runner->model().opened.checkpoint->identity_hash()).hex()));
  if (group.follows()) {
    const Status ended = runner->forward_state().link->follow(runner->forward_state());
    if (!ended) exit_code = end_follower(group, ended.error());
    return Ok{};
  }
  const std::vector<std::string> wanted = split_names(command.taps);
  TapRecorder taps(wanted);
  if (!wanted.empty()) taps.attach(runner->executor());
  PLUMB_TRY(const std::vector<float> logits, runner->feed(ids, static_cast<int64_t>(ids.size())));
  if (group.comm) runner->forward_state().link->finish();
  PLUMB_TRY_STATUS(check_taps(wanted, taps));
  PLUMB_TRY_STATUS(write_result(command, ids, logits, taps, runner->planned()));
  const auto vocab = static_cast<size_t>(runner->config().vocab_size);
  std::printf("%zu positions, plan %s, next token %d\n", ids.size(), runner->planned().plan.fingerprint().c_str(),
              argmax(std::span(logits).last(vocab)));
  return Ok{};
}

}  // namespace

void add_logits_command(CLI::App& app, CliContext& context, int& exit_code) {
  auto command = std::make_shared<LogitsCommand>();
  CLI::App* sub = app.add_subcommand("logits", "Write float32 logits of every position, and intermediates by name");
  add_model_options(*sub, command->model);
  add_rank_options(*sub, command->model, command->ranks);
  auto* ids = sub->add_option("--ids", command->ids_file, "File with token ids: a JSON list or plain numbers");
  auto* prompt = sub->add_option("--prompt", command->prompt, "Text to tokenise, taken as it is: no chat template");
  ids->excludes(prompt);
  sub->add_option("--out", command->out, "safetensors file to write")->required();
  sub->add_option("--taps", command->taps, "Intermediates to write: all, or names separated by commas");
  sub->add_option("--chunk", command->chunk, "Rows of one step")->check(CLI::Range(1, 65536));
  sub->callback([command, &context, &exit_code] {
    if (Status status = run(*command, context, exit_code); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb
