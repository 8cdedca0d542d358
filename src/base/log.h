// The log: one line an event, to standard error. Needs neither fmt nor spdlog to include.
// Prompt or answer text never goes here.
#pragma once

#include <string_view>

namespace plumb {

enum class LogLevel { Debug, Info, Warn, Error };
enum class LogFormat { Text, Json };

// Once, at start of the process; before that, Info and Text.
void log_setup(LogLevel level, LogFormat format);
void log_line(LogLevel level, std::string_view message);
inline void log_debug(std::string_view message) { log_line(LogLevel::Debug, message); }
inline void log_info(std::string_view message) { log_line(LogLevel::Info, message); }
inline void log_warn(std::string_view message) { log_line(LogLevel::Warn, message); }
inline void log_error(std::string_view message) { log_line(LogLevel::Error, message); }

}  // namespace plumb
