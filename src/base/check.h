// PLUMB_CHECK: an invariant of ours. Broken means a bug of ours; a numerics server in an unknown state must not go on.
#pragma once

#include <string_view>

namespace plumb {
// Logs file, line, condition and message, then ends the process: exit code 70, or abort() in debug builds.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message);
}  // namespace plumb

#define PLUMB_CHECK(condition, message)                               \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::plumb::check_failed(__FILE__, __LINE__, #condition, message); \
  } while (false)
