// Files that stay mapped while they are used. One that is cut short, or whose disk fails, ends a process by SIGBUS in
// the middle of some kernel; the guard makes it the message and exit code of a broken checkpoint.
#pragma once

#include <cstddef>
#include <filesystem>

namespace plumb {

// For the whole process; once, by main. A SIGBUS outside the watched ranges ends the process as it always did.
void install_mapping_guard();

void watch_mapping(const void* base, size_t bytes, const std::filesystem::path& path);
void unwatch_mapping(const void* base);

}  // namespace plumb
