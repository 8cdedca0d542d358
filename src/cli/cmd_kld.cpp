// plumb kld: how far two checkpoints, or two ways of running one, are apart in what they expect next.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/json_file.h"
#include "checkpoint/model_source.h"
#include "cli/cli.h"
#include "cli/fault_options.h"
#include "cli/model_options.h"
#include "cli/token_input.h"
#include "guard/divergence.h"
#include "model/runner.h"
#include "text/tokenizer.h"

namespace plumb {
namespace {

struct KldCommand {
  ModelOptions model{};
  std::string other{};
  std::string other_backend{}, other_kv{};  // empty: as the first
  std::string text_file{}, ids_file{};
  int window = 512;
  int worst = 10;
  bool json = false;
};

// Both must see the same tokens, or their positions are not the same question.
Result<std::vector<int32_t>> shared_ids(const KldCommand& command, const Tokenizer& a, const Tokenizer& b) {
  if (!command.ids_file.empty()) return read_ids(command.ids_file);
  PLUMB_TRY(const std::string text, read_text_file(command.text_file, size_t{64} << 20));
  PLUMB_TRY(std::vector<int32_t> ids, a.encode(text));
  PLUMB_TRY(const std::vector<int32_t> other, b.encode(text));
  if (ids != other)
    return Error{Code::Usage,
                 command.model.model + " and " + command.other + " make different tokens of " + command.text_file,
                 "a divergence compares probabilities of the same tokens",
                 {"two checkpoints with one tokenizer.json", "--ids FILE"}};
  return ids;
}

// Planted faults live in the first.
RunnerOptions runner_options(const KldCommand& command, const Registry& registry, bool of_other) {
  RunnerOptions options{.plan = command.model.plan, .threads = command.model.threads};
  if (!of_other) options.loaded = fault_planter(command.model, registry);
  if (of_other && !command.other_backend.empty()) options.plan.backend = command.other_backend;
  if (of_other && !command.other_kv.empty()) options.plan.kv = command.other_kv;
  options.plan.mtp = "off";
  options.plan.max_sequences = 1;
  options.plan.max_context = command.window;
  options.plan.max_rows = std::min(command.window, 256);  // rows of logits held at once
  return options;
}

std::string printable(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  return nlohmann::json(tokenizer.decode(ids, /*skip_special=*/false))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void print_json(const KldCommand& command, const Divergence& all) {
  nlohmann::ordered_json out{{"a", command.model.model},
                             {"b", command.other},
                             {"window", command.window},
                             {"positions", all.rows().size()},
                             {"mean", all.mean()},
                             {"p99", all.quantile(0.99)},
                             {"max", all.max()},
                             {"top1_agreement", all.top1_agreement()},
                             {"kl", nlohmann::json::array()}};
  for (const RowDivergence& row : all.rows()) out["kl"].push_back(row.kl);  // infinite ones become null
  out["worst"] = all.worst(static_cast<size_t>(command.worst));
  std::printf("%s\n", out.dump().c_str());
}

void print_table(const KldCommand& command, const Divergence& all, std::span<const int32_t> ids,
                 const Tokenizer& tokenizer) {
  std::printf("%s\n", all.to_string().c_str());
  std::printf("%9s  %-10s  %-12s  %-12s  after\n", "position", "KL", "a expects", "b expects");
  for (const size_t at : all.worst(static_cast<size_t>(command.worst))) {
    const RowDivergence& row = all.rows()[at];
    const size_t begin = at + 1 - std::min<size_t>(at % static_cast<size_t>(command.window) + 1, 12);
    std::printf("%9zu  %-10.3g  %-12s  %-12s  %s\n", at, row.kl, printable(tokenizer, {&row.best_a, 1}).c_str(),
                printable(tokenizer, {&row.best_b, 1}).c_str(),
                printable(tokenizer, ids.subspan(begin, at + 1 - begin)).c_str());
  }
}

Status run(KldCommand& command, const CliContext& context) {
  PLUMB_TRY_STATUS(finish_model_options(command.model, context));
  if (command.model.plan.mtp == "on")
    return Error{Code::Unsupported, "--mtp on has nothing to act on", "only the model itself is run", {"--mtp off"}};
  if (command.text_file.empty() && command.ids_file.empty())
    return Error{Code::Usage, "there is no text to compare on", "", {"--text FILE", "--ids FILE"}};
  PLUMB_TRY(const ModelSource source_a, resolve_model(command.model.model, context.hf_home));
  PLUMB_TRY(const ModelSource source_b, resolve_model(command.other, context.hf_home));
  PLUMB_TRY(const Tokenizer tokenizer, Tokenizer::load(source_a.folder));
  PLUMB_TRY(const Tokenizer other, Tokenizer::load(source_b.folder));
  PLUMB_TRY(const std::vector<int32_t> ids, shared_ids(command, tokenizer, other));
  if (ids.empty()) return Error{Code::Usage, "there is not one token to compare on", "", {"a longer text"}};
  const int asked = command.model.plan.max_context;
  if (asked > 0 && asked < command.window)
    return Error{Code::Unsupported,
                 "--context " + std::to_string(asked) + " cannot be honoured",
                 "windows are of " + std::to_string(command.window) + " tokens",
                 {"--window " + std::to_string(asked)}};
  const Registry registry = make_registry();
  PLUMB_TRY(const auto a, ModelRunner::open(source_a.folder, registry, runner_options(command, registry, false)));
  PLUMB_TRY(const auto b, ModelRunner::open(source_b.folder, registry, runner_options(command, registry, true)));
  PLUMB_TRY(const Divergence all, measure_divergence(*a, *b, ids, command.window));
  if (command.json)
    print_json(command, all);
  else
    print_table(command, all, ids, tokenizer);
  return Ok{};
}

}  // namespace

void add_kld_command(CLI::App& app, CliContext& context, int& exit_code) {
  auto command = std::make_shared<KldCommand>();
  CLI::App* sub = app.add_subcommand("kld", "KL divergence of the next-token probabilities of two checkpoints, A to B");
  add_model_options(*sub, command->model);
  sub->add_option("other", command->other, "The checkpoint to compare with; may be the same, run differently")
      ->required();
  sub->add_option("--other-backend", command->other_backend, "Backend of the second; default: as the first");
  sub->add_option("--other-kv", command->other_kv, "KV cache of the second; default: as the first");
  auto* text = sub->add_option("--text", command->text_file, "File with text, taken as it is: no chat template");
  text->excludes(sub->add_option("--ids", command->ids_file, "File with token ids: a JSON list or plain numbers"));
  sub->add_option("--window", command->window, "Tokens after which the context starts anew")
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--worst", command->worst, "How many of the positions that differ most are shown")
      ->check(CLI::Range(0, 1'000'000));
  sub->add_flag("--json", command->json, "Everything as JSON, the value of every position included");
  sub->callback([command, &context, &exit_code] {
    if (Status status = run(*command, context); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb
