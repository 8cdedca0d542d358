#include "cli/crash_report.h"

#include <execinfo.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <vector>

#include "base/log.h"

namespace plumb {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
constexpr size_t kMostReports = 20;

// Made before any crash, so that the handler allocates nothing; never freed.
const char* g_folder = nullptr;
const std::string* g_facts = nullptr;
std::atomic<bool> g_writing{false};

void put(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Under a temporary name first: a report is whole or not there.
void write_report(const char* what) {
  if (g_folder == nullptr || g_writing.exchange(true)) return;
  char path[512], partial[520], line[128];
  std::snprintf(path, sizeof path, "%s/plumb-crash-%lld-%d.txt", g_folder, static_cast<long long>(std::time(nullptr)),
                static_cast<int>(getpid()));
  std::snprintf(partial, sizeof partial, "%s.part", path);
  const int file = ::open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
  if (file < 0) return;
  std::snprintf(line, sizeof line, "plumb ended by %s, Unix time %lld\n\nframes\n", what,
                static_cast<long long>(std::time(nullptr)));
  put(file, line);
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), file);
  put(file, "\nlast lines of the log\n");
  const RecentLog log = recent_log();
  put(file, log.older);
  put(file, log.newer);
  put(file, "\n");
  put(file, *g_facts);
  ::close(file);
  ::rename(partial, path);
  put(STDERR_FILENO, "plumb: crash report written to ");
  put(STDERR_FILENO, path);
  put(STDERR_FILENO, "\n");
}

void on_signal(int signal) {
  std::signal(signal, SIG_DFL);
  write_report(strsignal(signal));
  ::raise(signal);  // the exit status stays the signal's, and a core is written where that is wanted
}

void drop_old_reports(const std::string& folder) {
  std::vector<std::filesystem::path> reports;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().filename().string().starts_with("plumb-crash-")) reports.push_back(entry.path());
  std::sort(reports.begin(), reports.end());  // names begin with the time
  for (size_t i = 0; i + kMostReports <= reports.size(); ++i) std::filesystem::remove(reports[i], error);
}

}  // namespace

Status prepare_crash_report(const std::string& folder, std::string facts) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || ::access(folder.c_str(), W_OK) != 0)
    return Error{Code::Environment, "--crash-dir " + folder, error ? error.message() : std::strerror(errno), {}};
  drop_old_reports(folder);
  g_folder = strdup(folder.c_str());
  g_facts = new std::string(std::move(facts));
  void* frame[1];
  backtrace(frame, 1);  // loads what it needs, which a handler must not
  for (const int signal : kSignals) std::signal(signal, on_signal);
  return Ok{};
}

void write_crash_report(const char* what) { write_report(what); }

}  // namespace plumb
