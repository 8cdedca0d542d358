#include <cstdio>

#include "cli/cli.h"

namespace plumb {

int report(const Error& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s\n", error.to_string().c_str());
  return exit_code(error.code);
}

}  // namespace plumb
