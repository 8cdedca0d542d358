#include "cli/model_options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "cli/configuration.h"
#include "cli/fault_options.h"
#include "cli/value_checks.h"

namespace plumb {
namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// "--max-context" -> "max_context", the name the plan shows.
std::string plan_name(const CLI::Option& option) {
  std::string name = option.get_lnames().front();
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

}  // namespace

void add_model_options(CLI::App& command, ModelOptions& o) {
  ModelPlanOptions& p = o.plan;
  const auto add = [&](CLI::Option* option) { o.options.push_back(option); };
  command.add_option("model", o.model, "Model folder, or org/name in the local Hugging Face cache")->required();
  add(command.add_option("--backend", p.backend, "auto, cpu, cuda, or reference (exact and slow)"));
  add(command.add_option("--isa", p.isa, "Highest instruction set to use: auto, generic, avx2, avx512, avx512bf16"));
  add(command.add_option("--kv,--kv-cache-dtype", p.kv, "KV cache: auto, bf16, fp8, f32"));
  add(command.add_option("--index-keys", p.index_keys, "Indexer key cache: auto, bf16, fp8, f32"));
  add(command.add_option("--numeric-profile", p.numeric_profile,
                         "transformers, or engine (what serving engines compute)"));
  add(command.add_option("--activations", p.activations, "auto, f32, or bf16 (every result rounded to bf16)"));
  add(command.add_option("--mtp", p.mtp, "Multi-token-prediction layer: auto, on, off"));
  add(command.add_flag("--deterministic", p.deterministic, "Only kernels whose bits never depend on the batch"));
  add(command.add_option("--context", p.max_context, "Longest sequence in tokens; 0: the model's, or what fits"));
  add(command.add_option("--pages", p.pages, "KV pages of 64 tokens; 0: enough for the sequences, or what fits"));
  add(command.add_option("--tp", p.tp, "Ranks that share the model by tensor parallelism")->check(CLI::Range(1, 1024)));
  add(command.add_flag("--expert-parallel", p.ep,
                       "With --tp: each rank holds whole routed experts, not a slice of each"));
  add(command.add_option("--memory-fraction", p.memory_fraction, "Share of a device's memory that may be planned"));
  add(command.add_option(
      "--quantization", p.quantization,
      "What the checkpoint must be: auto, none, fp8, modelopt_fp4, modelopt_fp8, compressed-tensors"));
  add(command.add_option("--kernel", o.kernels,
                         "Pin a kernel: OP=NAME, PLACE=NAME or layers.*.PLACE=NAME, repeatable"));
  add(command.add_option("--threads", o.threads, "Worker threads; 0: one a core")->check(thread_count()));
  add_fault_options(command, o);
}

Status finish_model_options(ModelOptions& o, const CliContext& context) {
  for (const std::string& text : o.kernels) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      return Error{Code::Usage,
                   "--kernel " + text + " is not PLACE=NAME",
                   "",
                   {"--kernel linear=NAME; see plumb plan MODEL --json"}};
    o.plan.pinned.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  for (const TranslatedFlags::Fulfilled& f : context.foreign.fulfilled)
    o.fulfilled.push_back({.name = f.name, .asked = f.value, .effective = f.value, .source = "flag; " + f.because});
  for (const CLI::Option* option : o.options) {
    if (option->count() == 0) continue;
    const std::string name = plan_name(*option);
    const auto foreign = context.foreign.origins.find(name);
    const std::string source = source_of(*option, context);
    const bool translated = source == "flag" && foreign != context.foreign.origins.end();
    o.plan.sources[name] = translated ? "flag " + foreign->second : source;
    const bool flag = option->get_expected_max() == 0;  // without a value to show
    o.plan.asked[name] = flag ? (option->as<bool>() ? "on" : "off") : option->results().back();
  }
  return Ok{};
}

LoadBar::LoadBar() : terminal_(isatty(STDERR_FILENO) == 1) {}

void LoadBar::update(const LoadProgress& progress) {
  if (progress.phase != phase_) {
    finish();
    phase_ = progress.phase;
    begin_ns_ = now_ns();
  }
  total_bytes_ = progress.total_bytes;
  const int64_t now = now_ns();
  if (!terminal_ || total_bytes_ <= 0 || now - shown_ns_ < 100'000'000) return;
  shown_ns_ = now;
  const double seconds = std::max(1e-9, static_cast<double>(now - begin_ns_) * 1e-9);
  const double share = static_cast<double>(progress.done_bytes) / static_cast<double>(total_bytes_);
  const double rate = static_cast<double>(progress.done_bytes) / 1e9 / seconds;
  const double left = share > 0 ? seconds * (1 - share) / share : 0;
  const int filled = static_cast<int>(share * 30);
  std::fprintf(stderr, "\r%-8s [%.*s%*s] %3.0f %%  %.2f GB/s  %.0f s left ", phase_.c_str(), filled,
               "##############################", 30 - filled, "", share * 100, rate, left);
  std::fflush(stderr);
}

void LoadBar::finish() {
  if (phase_.empty()) return;
  const double seconds = std::max(1e-9, static_cast<double>(now_ns() - begin_ns_) * 1e-9);
  const double gigabytes = static_cast<double>(total_bytes_) / 1e9;
  std::fprintf(stderr, "%s%-8s %.2f GB in %.2f s (%.2f GB/s)%s\n", terminal_ ? "\r" : "", phase_.c_str(), gigabytes,
               seconds, gigabytes / seconds, terminal_ ? "                                        " : "");
  phase_.clear();
}

}  // namespace plumb
