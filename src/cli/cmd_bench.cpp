// plumb bench: kernels, decode steps and loading against what the machine gives at best.
#include <CLI/CLI.hpp>

#include "cli/bench_decode.h"
#include "cli/bench_guard.h"
#include "cli/bench_load.h"
#include "cli/bench_serve.h"
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
  CLI::Option* ops = sub->add_flag("--ops", options->ops, "How long each op of a step takes, launched many times");
  sub->add_flag("--json", options->json, "One JSON object")->excludes(ops);
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

void add_serve(CLI::App& bench, int& exit_code) {
  auto o = std::make_shared<BenchServeOptions>();
  CLI::App* sub = bench.add_subcommand("serve", "Load on an OpenAI-compatible server, and what its clients see");
  sub->add_option("--url", o->url, "http://HOST:PORT of any OpenAI-compatible server");
  sub->add_option("--model", o->model, "Name to ask for; default: the first that it serves");
  sub->add_option("--api-key", o->api_key, "Bearer token");
  sub->add_option("--endpoint", o->endpoint, "completions or chat")->check(CLI::IsMember({"completions", "chat"}));
  sub->add_option("--workload", o->workload, "random, shared-prefix, or trace")
      ->check(CLI::IsMember({"random", "shared-prefix", "trace"}));
  sub->add_option("--trace", o->trace,
                  "JSONL: timestamp (ms), prompt | messages | input_length, output_length; its times are kept");
  sub->add_option("--requests", o->requests, "How many are counted")->check(CLI::Range(1, 10'000'000));
  sub->add_option("--warmup", o->warmup, "Sent before, one at a time, not counted")->check(CLI::Range(0, 10'000));
  sub->add_option("--concurrency", o->concurrency, "Closed loop: so many at a time. Open loop: at most; 0: no limit")
      ->check(CLI::Range(0, 100'000));
  sub->add_option("--rate", o->rate, "Open loop: requests a second, at random times; 0: closed loop")
      ->check(number_from(0, 1e6));
  sub->add_option("--input-tokens", o->input_tokens, "Words of a prompt")->check(CLI::Range(1, 10'000'000));
  sub->add_option("--output-tokens", o->output_tokens, "max_tokens of a request")->check(CLI::Range(1, 10'000'000));
  sub->add_option("--prefix-tokens", o->prefix_tokens, "Words that all prompts of shared-prefix begin with")
      ->check(CLI::Range(1, 10'000'000));
  sub->add_option("--temperature", o->temperature, "0: greedy")->check(number_from(0, 2));
  sub->add_option("--seed", o->seed, "Of prompts and times")->check(unsigned_number());
  sub->add_flag("--no-stream", o->no_stream, "Whole answers: only E2E is known");
  sub->add_flag("--use-eos", o->use_eos, "Let the model end its answers (no ignore_eos in the requests)");
  sub->add_flag("--json", o->json, "One JSON object");
  sub->callback([o, &exit_code] {
    if (Status status = bench_serve(*o); !status) exit_code = report(status.error());
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
  add_serve(*bench, exit_code);
}

}  // namespace plumb
