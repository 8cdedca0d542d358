#include <cstdio>

#include "cli/cli.h"

namespace plumb {

int report(const Error& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s\n", error.to_string().c_str());
  // The message of a mistyped flag says all; other kinds have more to say about what to do.
  if (error.code != Code::Usage && error.code != Code::Cancelled)
    std::fprintf(stderr, "  more: plumb explain %s\n", std::string(code_name(error.code)).c_str());
  return exit_code(error.code);
}

}  // namespace plumb
