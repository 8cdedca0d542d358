// plumb bench: kernels, decode steps and loading against what the machine gives at best.
#include <CLI/CLI.hpp>

#include "cli/bench_decode.h"
#include "cli/bench_guard.h"
#include "cli/bench_load.h"
#include "cli/cli.h"
#include "cli/value_checks.h"
#include "kernels/bench_kernels.h"

namespace plumb {
namespace {

void add_kernels(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<BenchKernelsOptions>();
  CLI::App* sub = bench.add_subcommand("kernels", "Kernels against read bandwidth and the multiplier's peak");
  sub->add_option("--op", options->op, "linear, mlp, moe, prepare")
      ->check(CLI::IsMember({"linear", "mlp", "moe", "prepare"}));
  sub->add_option("--format", options->formats,
                  "bf16 f16 f32 fp8_block fp8_ue8m0 fp8_tensor fp8_channel nvfp4; default: all");
  sub->add_option("--rows", options->rows, "Rows, one or several numbers")->check(CLI::Range(1, 65536));
  sub->add_option("--n", options->n, "Outputs, or the intermediate size")->check(CLI::Range(1, 1 << 22));
  sub->add_option("--k", options->k, "Inputs")->check(CLI::Range(1, 1 << 22));
  sub->add_option("--topk", options->topk, "Experts a row, of moe")->check(CLI::Range(1, 256));
  sub->add_option("--pairs", options->pairs, "Pairs of probe and kernel")->check(CLI::Range(1, 10000));
  sub->add_option("--kernel", options->kernel, "Kernels whose name contains this; default: the preferred one");
  sub->add_option("--threads", options->threads, "0: all cores")->check(thread_count());
  sub->add_flag("--json", options->json, "One JSON object a line");
  sub->callback([options, &exit_code] { exit_code = bench_kernels(*options); });
}

void add_decode(CLI::App& bench, CliContext& context, int& exit_code) {
  auto options = std::make_shared<BenchDecodeOptions>();
  CLI::App* sub = bench.add_subcommand("decode", "Decode steps of a model against the bytes they must read");
  add_model_options(*sub, options->model);
  sub->add_option("--prompt-tokens", options->context, "Tokens in the cache before the first timed step")
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--rows", options->rows, "Sequences that decode together")->check(CLI::Range(1, 512));
  sub->add_option("--pairs", options->pairs, "Pairs of probe and step")->check(CLI::Range(1, 10000));
  sub->add_flag("--json", options->json, "One JSON object");
  sub->callback([options, &context, &exit_code] {
    if (Status status = bench_decode(*options, context); !status) exit_code = report(status.error());
  });
}

void add_guard(CLI::App& bench, CliContext& context, int& exit_code) {
  auto options = std::make_shared<BenchGuardOptions>();
  CLI::App* sub = bench.add_subcommand("guard", "CPU time of steps with the sentinels and without");
  add_model_options(*sub, options->model);
  sub->add_option("--prompt-tokens", options->context, "Tokens in the cache before each step")
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--rows", options->rows, "Sequences of a step")->check(CLI::Range(1, 64));
  sub->add_option("--chunk", options->chunk, "Rows of each sequence in a step; more than 1 is a prompt")
      ->check(CLI::Range(1, 512));
  sub->add_option("--pairs", options->pairs, "Pairs of a watched and an unwatched step")->check(CLI::Range(8, 100000));
  sub->add_flag("!--no-captures", options->captures, "As with --capture-dir off");
  sub->add_flag("--json", options->json, "One JSON object");
  sub->callback([options, &context, &exit_code] {
    if (Status status = bench_guard(*options, context); !status) exit_code = report(status.error());
  });
}

void add_load(CLI::App& bench, CliContext& context, int& exit_code) {
  auto options = std::make_shared<BenchLoadOptions>();
  CLI::App* sub = bench.add_subcommand("load", "Loading of a model that is in the page cache against copying memory");
  add_model_options(*sub, options->model);
  sub->add_option("--repeats", options->repeats, "Loads")->check(CLI::Range(1, 100));
  sub->callback([options, &context, &exit_code] {
    if (Status status = bench_load(*options, context); !status) exit_code = report(status.error());
  });
}

}  // namespace

void add_bench_command(CLI::App& app, CliContext& context, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine and this build");
  bench->require_subcommand(1);
  add_kernels(*bench, exit_code);
  add_decode(*bench, context, exit_code);
  add_guard(*bench, context, exit_code);
  add_load(*bench, context, exit_code);
}

}  // namespace plumb
