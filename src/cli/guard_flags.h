// How a server watches its steps, as flags.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "guard/guard.h"

namespace CLI {
class App;
}

namespace plumb {

struct GuardFlags {
  std::string guard = "on";
  double shadow_rate = 0;
  std::string capture_dir = "auto";  // auto | off | a folder
  int capture_files = 16;
  int capture_mb = 256;
  bool capture_prompts = false;
};
void add_guard_options(CLI::App& command, GuardFlags& flags);
// What --capture-dir auto stands for; empty: this user has no state folder.
std::filesystem::path default_capture_folder();
// Errors: Unsupported for a flag that has nothing to act on.
Result<GuardOptions> guard_options(const GuardFlags& flags);

}  // namespace plumb
