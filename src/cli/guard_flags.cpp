#include "cli/guard_flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>

#include "cli/value_checks.h"

namespace plumb {

// Of the service manager, else of the user.
std::filesystem::path default_capture_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  if (const auto state = variable("STATE_DIRECTORY"); !state.empty()) return state / "captures";
  if (const auto state = variable("XDG_STATE_HOME"); !state.empty()) return state / "plumb" / "captures";
  if (const auto home = variable("HOME"); !home.empty()) return home / ".local" / "state" / "plumb" / "captures";
  return {};
}

void add_guard_options(CLI::App& command, GuardFlags& flags) {
  command.add_option("--guard", flags.guard, "on: every op's results are looked at; off: only the last ones")
      ->check(CLI::IsMember({"on", "off"}));
  command
      .add_option("--shadow-rate", flags.shadow_rate,
                  "Share of steps of which one row is recomputed by the reference; 1: every step, layer and row")
      ->check(number_from(0, 1));
  command.add_option("--capture-dir", flags.capture_dir,
                     "Folder for captures of numerical faults; auto: plumb/captures in the state folder; off: none");
  command.add_option("--capture-files", flags.capture_files, "Most captures the folder may hold")
      ->check(CLI::Range(1, 100'000));
  command.add_option("--capture-mb", flags.capture_mb, "Most MiB of captures the folder may hold")
      ->check(CLI::Range(1, 1 << 20));
  command.add_flag("--capture-prompts", flags.capture_prompts, "Captures hold token ids too: they are the user's text");
}

Result<GuardOptions> guard_options(const GuardFlags& flags) {
  GuardOptions options{.sentinels = flags.guard == "on", .shadow_rate = flags.shadow_rate};
  const bool captures = flags.capture_dir != "off" && (options.sentinels || options.shadow_rate > 0);
  if (flags.capture_prompts && !captures)
    return Error{Code::Unsupported,
                 "--capture-prompts has nothing to act on",
                 "no capture is written",
                 {"--guard on and a --capture-dir", "without --capture-prompts"}};
  if (!captures) return options;
  options.captures = {
      .folder = flags.capture_dir == "auto" ? default_capture_folder() : std::filesystem::path(flags.capture_dir),
      .max_files = flags.capture_files,
      .max_bytes = int64_t{flags.capture_mb} << 20,
      .with_tokens = flags.capture_prompts};
  return options;
}

}  // namespace plumb
