// What every command gets from main: the environment, read once, in one place.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/foreign_flags.h"

namespace CLI {
class App;
}

namespace plumb {

struct CliContext {
  std::filesystem::path hf_home{};               // $HF_HOME, else ~/.cache/huggingface
  std::vector<std::string> arguments{};          // of the command line, other servers' flags translated
  std::map<std::string, std::string> sources{};  // of options that --config gave: name to FILE:LINE
  TranslatedFlags foreign{};                     // what other servers' flags on the command line became
};

// Prints "error: ..." to standard error and gives the exit code of the error's kind.
int report(const Error& error);

void add_inspect_command(CLI::App& app, CliContext& context, int& exit_code);
void add_quantize_command(CLI::App& app, CliContext& context, int& exit_code);
void add_synth_command(CLI::App& app, CliContext& context, int& exit_code);
void add_tokenize_commands(CLI::App& app, CliContext& context, int& exit_code);  // tokenize, render
void add_plan_command(CLI::App& app, CliContext& context, int& exit_code);
void add_logits_command(CLI::App& app, CliContext& context, int& exit_code);
void add_run_commands(CLI::App& app, CliContext& context, int& exit_code);  // run, chat
void add_serve_command(CLI::App& app, CliContext& context, int& exit_code);
void add_golden_command(CLI::App& app, CliContext& context, int& exit_code);  // golden make
void add_check_command(CLI::App& app, CliContext& context, int& exit_code);
void add_replay_command(CLI::App& app, CliContext& context, int& exit_code);
void add_kld_command(CLI::App& app, CliContext& context, int& exit_code);
void add_explain_command(CLI::App& app, int& exit_code);
void add_doctor_command(CLI::App& app, CliContext& context, int& exit_code);
void add_bench_command(CLI::App& app, CliContext& context, int& exit_code);

}  // namespace plumb
