#include "checkpoint/mapping_guard.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

#include <unistd.h>

#include "base/result.h"

namespace plumb {
namespace {

// Read by the signal handler: fixed storage, no locks. `end` is written last and cleared first.
struct Mapping {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::array<char, 512> path{};
};
std::array<Mapping, 2048> mappings;  // the largest published checkpoints have 282 files
std::mutex writing;

void put(const char* text) { static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text))); }

void put_number(uintptr_t value) {
  std::array<char, 24> digits{};
  size_t at = digits.size() - 1;
  do digits[--at] = static_cast<char>('0' + value % 10);
  while ((value /= 10) > 0);
  put(&digits[at]);
}

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping& m : mappings) {
    const uintptr_t end = m.end.load(std::memory_order_acquire);
    if (address < m.begin.load(std::memory_order_relaxed) || address >= end) continue;
    put("error: ");
    put(m.path.data());
    put(": byte ");
    put_number(address - m.begin);
    put(" of ");
    put_number(end - m.begin);
    put(" cannot be read any more\n  the file was cut short while it was in use, or its disk fails\n"
        "  works instead: the whole file again, and a new start\n");
    ::_exit(exit_code(Code::Corrupt));
  }
  std::signal(signal, SIG_DFL);  // not ours: the faulting instruction runs again and ends the process
}

}  // namespace

void install_mapping_guard() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

void watch_mapping(const void* base, size_t bytes, const std::filesystem::path& path) {
  const std::scoped_lock lock(writing);
  for (Mapping& m : mappings) {
    if (m.end.load(std::memory_order_relaxed) != 0) continue;
    const std::string text = path.string();
    const size_t length = std::min(text.size(), m.path.size() - 1);
    std::memcpy(m.path.data(), text.data() + (text.size() - length), length);  // the file's name is at the end
    m.path[length] = '\0';
    m.begin.store(reinterpret_cast<uintptr_t>(base), std::memory_order_relaxed);
    m.end.store(reinterpret_cast<uintptr_t>(base) + bytes, std::memory_order_release);
    return;
  }
}

void unwatch_mapping(const void* base) {
  const std::scoped_lock lock(writing);
  for (Mapping& m : mappings) {
    if (m.end.load(std::memory_order_relaxed) == 0 || m.begin != reinterpret_cast<uintptr_t>(base)) continue;
    m.end.store(0, std::memory_order_release);
    return;
  }
}

}  // namespace plumb
