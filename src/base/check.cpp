#include "base/check.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace plumb {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "plumb: internal error at %s:%d: %s is false: %.*s\nThis is a bug in plumb; please report it.\n",
               file, line, condition, static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
#ifdef NDEBUG
  _exit(70);
#else
  std::abort();
#endif
}

}  // namespace plumb
