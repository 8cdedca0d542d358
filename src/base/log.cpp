#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <string>

namespace plumb {
namespace {

LogFormat g_format = LogFormat::Text;  // written once by log_setup, before any thread starts

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = std::make_shared<spdlog::logger>("plumb", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::Debug:
      return spdlog::level::debug;
    case LogLevel::Info:
      return spdlog::level::info;
    case LogLevel::Warn:
      return spdlog::level::warn;
    case LogLevel::Error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void log_setup(LogLevel level, LogFormat format) {
  g_format = format;
  logger().set_level(spdlog_level(level));
  if (format == LogFormat::Json) logger().set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e","level":"%l","message":%v})");
}

void log_line(LogLevel level, std::string_view message) {
  if (g_format == LogFormat::Json) {
    const std::string quoted = nlohmann::json(message).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    logger().log(spdlog_level(level), "{}", quoted);
  } else {
    logger().log(spdlog_level(level), "{}", message);
  }
}

}  // namespace plumb
