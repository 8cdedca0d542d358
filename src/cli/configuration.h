// Where options get their values: the command line, else PLUMB_... of the environment, else --config FILE, else the
// default. The file holds one `name = value` a line; names are those of the flags without dashes in front.
#pragma once

#include "cli/cli.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace plumb {

// Adds --config and --print-config to every command and names each option's variable. Once, after all commands.
void add_configuration_options(CLI::App& app, const CliContext& context);

// Before the command line is parsed: looks through the environment for PLUMB_ variables that are nobody's, hands the
// file's values to the options that neither the command line nor the environment gives, and notes every source in
// `context.sources`. Fails (Usage) on a file that can't be read or has unknown names, and on a variable that is nearly
// an option's.
Status apply_configuration(CLI::App& app, CliContext& context);

// A line for each option of the command: name, value, source. Secrets are not shown.
std::string configuration_text(const CLI::App& command, const CliContext& context);

// For a complaint of the parser: a line for each option in it whose value is not from the command line.
std::string sources_in(const std::string& complaint, CLI::App& app, const CliContext& context);

// "flag", the variable's name, "FILE:LINE", or "default".
std::string source_of(const CLI::Option& option, const CliContext& context);

}  // namespace plumb
