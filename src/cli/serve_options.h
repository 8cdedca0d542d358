// The options of `plumb serve` that concern the server, not the model.
#pragma once

#include <string>

#include "base/result.h"
#include "serve/server.h"

namespace CLI {
class App;
}

namespace plumb {

struct ServeFlags {
  ServerOptions server{};
  std::string api_key{}, api_key_file{}, admin_key_file{};
  std::string reasoning_field = "reasoning_content";
  std::string log_format = "text", log_level = "info";
  bool no_access_log = false, no_web = false;
  int drain_ms = 30'000;
  int stuck_exit_ms = 60'000;
  std::string crash_dir{};
};

void add_serve_options(CLI::App& command, ServeFlags& flags);
// After parsing: sets up the log, reads the files of keys, turns names into values.
Status finish_serve_options(ServeFlags& flags);

}  // namespace plumb
