#include "cli/configuration.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/log.h"

namespace plumb {
namespace {

constexpr std::string_view kPrefix = "PLUMB_";

struct FileLine {
  std::string name{}, value{};
  int number = 0;
};

std::string variable_of(std::string_view name) {
  std::string variable(kPrefix);
  for (const char c : name) variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable;
}

// "max-running" of --max-running, "model" of the argument MODEL; "" for options that no file may hold.
std::string name_of(const CLI::Option& option) {
  if (option.get_lnames().empty()) return option.get_name(/*positional=*/true);
  const std::string& name = option.get_lnames().front();
  return name == "help" || name == "version" || name == "config" || name == "print-config" ? "" : name;
}

bool is_secret(std::string_view name) { return name == "api-key" || name == "admin-key"; }

template <class Visit>
void each_option(CLI::App& app, const Visit& visit) {
  for (CLI::Option* option : app.get_options()) visit(*option);
  for (CLI::App* command : app.get_subcommands({})) each_option(*command, visit);
}

// The command that the arguments name, as far as they name one.
CLI::App* command_of(CLI::App& app, const std::vector<std::string>& arguments) {
  CLI::App* command = &app;
  for (const std::string& argument : arguments) {
    const std::vector<CLI::App*> inner =
        command->get_subcommands([&](const CLI::App* sub) { return sub->check_name(argument); });
    if (inner.empty()) break;
    command = inner.front();
  }
  return command;
}

// The value of `--name VALUE` or `--name=VALUE`; nothing when it isn't there.
const std::string* find_argument(const std::vector<std::string>& arguments, const std::string& flag,
                                 std::string& storage) {
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    if (arguments[i] == flag) return i + 1 < arguments.size() ? &arguments[i + 1] : &(storage = "");
    if (arguments[i].starts_with(flag + "=")) return &(storage = arguments[i].substr(flag.size() + 1));
  }
  return nullptr;
}

bool on_command_line(const CLI::Option& option, const CliContext& context) {
  std::string unused;
  for (const std::string& name : option.get_lnames())
    if (find_argument(context.arguments, "--" + name, unused) != nullptr) return true;
  return false;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j < row.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// The names that `name`, which is none of them itself, is likely to have meant.
std::vector<std::string> close_names(std::string_view name, const std::vector<std::string>& names) {
  std::vector<std::string> close;
  const size_t most = name.size() < 12 ? 1 : 2;
  for (const std::string& other : names)
    if (edit_distance(name, other) <= most) close.push_back(other);
  return close;
}

// ---- the environment ----

// Kubernetes writes such variables into every pod for a service that is called "plumb".
bool of_kubernetes(std::string_view name, std::string_view value) {
  name.remove_prefix(kPrefix.size());
  if (name.starts_with("SERVICE_HOST") || name.starts_with("SERVICE_PORT")) return true;
  if (!name.starts_with("PORT")) return false;
  return value.find("://") != std::string_view::npos || name.starts_with("PORT_");
}

// Used by this project's own build and tests, never by the program.
bool of_the_build(std::string_view name) { return name.starts_with("PLUMB_TEST_") || name.starts_with("PLUMB_CI_"); }

std::vector<std::pair<std::string, std::string>> our_variables() {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (text.starts_with(kPrefix) && equals != std::string_view::npos)
      found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

Status check_environment(CLI::App& app) {
  std::vector<std::string> known{"PLUMB_CONFIG"};
  each_option(app, [&](const CLI::Option& option) {
    if (!option.get_envname().empty()) known.push_back(option.get_envname());
  });
  for (const auto& [name, value] : our_variables()) {
    if (of_the_build(name)) continue;
    if (of_kubernetes(name, value)) {
      log_warn(name + "=" + value.substr(0, 80) +
               " is ignored: Kubernetes sets it for a service called 'plumb'; it is no " +
               "option of this program. Harmless here; enableServiceLinks: false keeps it away");
      unsetenv(name.c_str());
      continue;
    }
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      const bool key = name == variable_of("api-key") || name == variable_of("admin-key");
      if (key && value.empty())
        return Error{Code::Usage, name + " is empty", "an empty key guards nothing", {"a key", "unset " + name}};
      continue;
    }
    const std::vector<std::string> close = close_names(name, known);
    if (!close.empty())
      return Error{Code::Usage, "the variable " + name + " is no option's", "it is nearly one", close};
    log_warn("the variable " + name + " is no option's: it changes nothing");
  }
  return Ok{};
}

// ---- the file ----

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

Result<std::vector<FileLine>> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error{Code::Usage, "--config " + path, "the file cannot be read", {}};
  std::vector<FileLine> lines;
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    const std::string_view line = trimmed(text);
    if (line.empty() || line.front() == '#') continue;
    const size_t equals = line.find('=');
    const std::string_view name = trimmed(line.substr(0, equals));
    std::string_view value = equals == std::string_view::npos ? "" : trimmed(line.substr(equals + 1));
    const bool quoted = value.size() >= 2 && value.front() == '"' && value.back() == '"';
    if (quoted) value = value.substr(1, value.size() - 2);
    if (equals == std::string_view::npos || name.empty())
      return Error{Code::Usage, path + ":" + std::to_string(number) + ": no 'name = value'", "", {"max-running = 64"}};
    lines.push_back({std::string(name), std::string(value), number});
    std::replace(lines.back().name.begin(), lines.back().name.end(), '_', '-');
  }
  if (file.bad()) return Error{Code::Usage, "--config " + path, "the file cannot be read", {}};
  return lines;
}

CLI::Option* find_option(CLI::App& command, const std::string& name) {
  for (CLI::Option* option : command.get_options())
    if (name_of(*option) == name) return option;
  return nullptr;
}

// Names of all commands: one file may serve `plumb plan` and `plumb serve`.
std::vector<std::string> all_names(CLI::App& app) {
  std::vector<std::string> names;
  each_option(app, [&](const CLI::Option& option) {
    const std::string name = name_of(option);
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  });
  return names;
}

Status apply_file(CLI::App& app, CLI::App& command, const std::string& path, CliContext& context) {
  PLUMB_TRY(const std::vector<FileLine> lines, read_file(path));
  const std::vector<std::string> names = all_names(app);
  for (const FileLine& line : lines) {
    const std::string place = path + ":" + std::to_string(line.number);
    CLI::Option* option = find_option(command, line.name);
    if (option == nullptr) {
      if (std::find(names.begin(), names.end(), line.name) != names.end()) continue;  // another command's
      return Error{Code::Usage, place + ": '" + line.name + "' is no option", "", close_names(line.name, names)};
    }
    const char* variable = option->get_envname().empty() ? nullptr : std::getenv(option->get_envname().c_str());
    const auto earlier = context.sources.find(line.name);
    const bool from_file = earlier != context.sources.end();
    if (from_file && option->get_expected_max() <= 1)
      return Error{Code::Usage, place + ": '" + line.name + "' is given twice", "first at " + earlier->second, {}};
    if (on_command_line(*option, context) || (variable != nullptr && *variable != '\0')) continue;
    if (option->get_positional()) {  // read as a variable, for the library to drop when the command line has it
      setenv(option->get_envname().c_str(), line.value.c_str(), 1);
    } else {
      option->add_result(line.value);
    }
    context.sources.emplace(line.name, place);
  }
  return Ok{};
}

// ---- what is in force ----

std::string default_of(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return "false";
  return option.get_default_str() == "[]" ? "" : option.get_default_str();
}

std::string joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : " ") + value;
  return text;
}

nlohmann::ordered_json described(const CLI::Option& option, const CliContext& context) {
  const std::string name = name_of(option);
  std::string value = option.count() > 0 ? joined(option.results()) : default_of(option);
  if (is_secret(name) && option.count() > 0) value = "(not shown)";
  return {{"flag", option.get_lnames().empty() ? "" : "--" + name},
          {"key", name},
          {"variable", option.get_envname()},
          {"default", default_of(option)},
          {"value", value},
          {"source", source_of(option, context)},
          {"help", option.get_description()}};
}

nlohmann::ordered_json described(const CLI::App& command, const CliContext& context) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const CLI::Option* option : command.get_options())
    if (!name_of(*option).empty()) all.push_back(described(*option, context));
  return all;
}

void print_configuration(const CLI::App& command, const CliContext& context, bool json) {
  const std::string text =
      json ? described(command, context).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"
           : configuration_text(command, context);
  std::fputs(text.c_str(), stdout);
}

void add_to(CLI::App& command, const CliContext& context) {
  for (CLI::Option* option : command.get_options()) {
    const std::string name = name_of(*option);
    if (!name.empty()) option->envname(variable_of(name));
  }
  const std::vector<CLI::App*> inner = command.get_subcommands({});
  for (CLI::App* sub : inner) add_to(*sub, context);
  if (!inner.empty()) return;
  command.add_option("--config", "Read options from a file of 'name = value' lines; also PLUMB_CONFIG");
  // Last, so that all other values have been checked when it ends the parsing.
  command.add_flag("--print-config")
      ->description("Show every option's value and where it comes from, and end; =json: as JSON")
      ->each([&command, &context](const std::string& form) {
        print_configuration(command, context, form == "json");
        throw CLI::Success();
      });
}

}  // namespace

void add_configuration_options(CLI::App& app, const CliContext& context) { add_to(app, context); }

Status apply_configuration(CLI::App& app, CliContext& context) {
  PLUMB_TRY_STATUS(check_environment(app));
  CLI::App* command = command_of(app, context.arguments);
  if (!command->get_subcommands({}).empty()) return Ok{};
  std::string storage;
  const std::string* path = find_argument(context.arguments, "--config", storage);
  const char* variable = std::getenv("PLUMB_CONFIG");
  if (path == nullptr && variable != nullptr && *variable != '\0') path = &(storage = variable);
  if (path != nullptr) PLUMB_TRY_STATUS(apply_file(app, *command, *path, context));
  return Ok{};
}

std::string sources_in(const std::string& complaint, CLI::App& app, const CliContext& context) {
  std::string text;
  for (const CLI::Option* option : command_of(app, context.arguments)->get_options()) {
    const std::string source = source_of(*option, context);
    if (source == "default" || source == "flag") continue;
    const std::string flag = option->get_lnames().empty() ? name_of(*option) : "--" + name_of(*option);
    if (complaint.find(flag) != std::string::npos) text += "  " + flag + " comes from " + source + "\n";
  }
  return text;
}

std::string configuration_text(const CLI::App& command, const CliContext& context) {
  std::string text;
  for (const auto& entry : described(command, context)) {
    const auto padded = [&](const char* field, size_t width) {
      std::string value = entry[field].get<std::string>();
      value.resize(std::max(width, value.size()), ' ');
      return value;
    };
    text += padded("key", 24) + ' ' + padded("value", 28) + ' ' + padded("source", 0) + '\n';
  }
  return text;
}

std::string source_of(const CLI::Option& option, const CliContext& context) {
  if (option.count() == 0) return "default";
  if (on_command_line(option, context)) return "flag";
  const char* variable = option.get_envname().empty() ? nullptr : std::getenv(option.get_envname().c_str());
  // The command line may hold an argument without a dash as well, and then wins.
  if (option.get_positional() && (variable == nullptr || option.results().front() != variable)) return "flag";
  if (const auto file = context.sources.find(name_of(option)); file != context.sources.end()) return file->second;
  return option.get_envname();
}

}  // namespace plumb
