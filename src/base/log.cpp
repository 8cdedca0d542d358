#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <mutex>
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

// A ring: what a crash report shows.
struct {
  char text[16384];
  std::atomic<size_t> written{0};
  std::mutex mutex{};
} g_recent;

void keep(std::string_view line) {
  const std::lock_guard lock(g_recent.mutex);
  size_t at = g_recent.written.load(std::memory_order_relaxed);
  const auto append = [&](std::string_view text) {
    for (const char c : text) g_recent.text[at++ % sizeof g_recent.text] = c;
  };
  append(line.substr(0, sizeof g_recent.text / 2));
  append("\n");
  g_recent.written.store(at, std::memory_order_release);
}

std::string as_json(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool needs_quotes(std::string_view value) {
  return value.empty() || std::any_of(value.begin(), value.end(), [](char c) {
           return static_cast<unsigned char>(c) <= ' ' || c == '"' || c == '=' || c == 0x7f;
         });
}

}  // namespace

void log_setup(LogLevel level, LogFormat format) {
  g_format = format;
  logger().set_level(spdlog_level(level));
  if (format == LogFormat::Json) logger().set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e","level":"%l","message":%v})");
}

void log_line(LogLevel level, std::string_view message) { log_event(level, message, {}); }

void log_event(LogLevel level, std::string_view message, std::span<const LogField> fields) {
  if (!logger().should_log(spdlog_level(level))) return;
  const bool json = g_format == LogFormat::Json;
  std::string line = json ? as_json(message) : std::string(message);
  for (const LogField& field : fields) {
    const bool plain = field.number || (!json && !needs_quotes(field.value));
    line.append(json ? ",\"" : " ").append(field.name).append(json ? "\":" : "=");
    line += plain ? field.value : as_json(field.value);
  }
  keep(line);
  logger().log(spdlog_level(level), "{}", line);
}

RecentLog recent_log() {
  const size_t written = g_recent.written.load(std::memory_order_acquire), size = sizeof g_recent.text;
  if (written <= size) return {.older = {g_recent.text, written}};
  const size_t at = written % size;
  return {.older = {g_recent.text + at, size - at}, .newer = {g_recent.text, at}};
}

}  // namespace plumb
