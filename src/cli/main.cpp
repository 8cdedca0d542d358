#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "checkpoint/mapping_guard.h"
#include "cli/build_info.h"
#include "cli/cli.h"
#include "cli/configuration.h"

namespace {

std::filesystem::path hf_home_from_environment() {
  if (const char* home = std::getenv("HF_HOME"); home != nullptr && *home != '\0') return home;
  if (const char* home = std::getenv("HOME"); home != nullptr)
    return std::filesystem::path(home) / ".cache/huggingface";
  return {};
}

// The library only says that a subcommand is required.
plumb::Status check_command(const CLI::App& app, const plumb::CliContext& context) {
  if (context.arguments.empty() || context.arguments.front().starts_with("-")) return plumb::Ok{};
  plumb::Error unknown{plumb::Code::Usage, "'" + context.arguments.front() + "' is not a command", "", {}};
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == context.arguments.front()) return plumb::Ok{};
    unknown.works.push_back("plumb " + command->get_name());
  }
  return unknown;
}

int run(int argc, char** argv) {
  CLI::App app{"plumb: serves GLM-5-class models with numbers that can be trusted", "plumb"};
  app.set_version_flag("--version", plumb::version_text());
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  app.option_defaults()->always_capture_default();

  plumb::CliContext context{.hf_home = hf_home_from_environment(), .arguments = {argv + 1, argv + argc}};
  int exit_code = 0;
  plumb::add_serve_command(app, context, exit_code);
  plumb::add_run_commands(app, context, exit_code);
  plumb::add_plan_command(app, context, exit_code);
  plumb::add_logits_command(app, context, exit_code);
  plumb::add_check_command(app, context, exit_code);
  plumb::add_replay_command(app, context, exit_code);
  plumb::add_kld_command(app, context, exit_code);
  plumb::add_golden_command(app, context, exit_code);
  plumb::add_explain_command(app, exit_code);
  plumb::add_tokenize_commands(app, context, exit_code);
  plumb::add_bench_command(app, context, exit_code);
  plumb::add_inspect_command(app, context, exit_code);
  plumb::add_quantize_command(app, context, exit_code);
  plumb::add_synth_command(app, context, exit_code);
  plumb::add_doctor_command(app, context, exit_code);
  plumb::add_configuration_options(app, context);

  if (const plumb::Status known = check_command(app, context); !known) return plumb::report(known.error());
  if (const std::string command = context.arguments.empty() ? "" : context.arguments.front();
      command == "serve" || command == "plan") {
    plumb::Result<plumb::TranslatedFlags> translated = plumb::translate_foreign_flags(context.arguments);
    if (!translated) return plumb::report(translated.error());
    context.foreign = *std::move(translated);
    context.arguments = context.foreign.arguments;
  }
  if (const plumb::Status applied = plumb::apply_configuration(app, context); !applied)
    return plumb::report(applied.error());
  try {
    app.parse(std::vector<std::string>(context.arguments.rbegin(), context.arguments.rend()));
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);  // prints help, version or the complaint
    if (code == 0) return 0;
    std::fputs(plumb::sources_in(error.what(), app, context).c_str(), stderr);
    return 1;
  }
  // What could not be written (a full disk) is no success.
  if (exit_code == 0 && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0))
    return plumb::report({plumb::Code::Environment, "cannot write to standard output", std::strerror(errno), {}});
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  plumb::install_mapping_guard();
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return plumb::report({plumb::Code::Environment,
                          "there is no memory left for this process",
                          "",
                          {"a shorter --context", "a larger ulimit or control group"}});
  } catch (const std::exception& error) {  // of a library; ours are values
    std::fprintf(stderr, "plumb: internal error: %s\n", error.what());
    return 70;
  }
}
