// The log: one line an event, to standard error. Needs neither fmt nor spdlog to include.
// Prompt or answer text never goes here.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace plumb {

enum class LogLevel { Debug, Info, Warn, Error };
enum class LogFormat { Text, Json };

// Once, at start of the process; before that, Info and Text.
void log_setup(LogLevel level, LogFormat format);
void log_line(LogLevel level, std::string_view message);

// A line with named values: `message name=value ...`, in JSON members of their own.
struct LogField {
  std::string_view name{};
  std::string value{};
  bool number = false;
};
void log_event(LogLevel level, std::string_view message, std::span<const LogField> fields);

// The latest lines as they were written, oldest first, in two parts; for a report after a crash. Takes no lock, so a
// line that is being written may be seen half.
struct RecentLog {
  std::string_view older{}, newer{};
};
RecentLog recent_log();

inline void log_debug(std::string_view message) { log_line(LogLevel::Debug, message); }
inline void log_info(std::string_view message) { log_line(LogLevel::Info, message); }
inline void log_warn(std::string_view message) { log_line(LogLevel::Warn, message); }
inline void log_error(std::string_view message) { log_line(LogLevel::Error, message); }

}  // namespace plumb
