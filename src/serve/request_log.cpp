#include "serve/request_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace plumb {

namespace {

using Json = nlohmann::ordered_json;

// A path may hold anything; neither log nor trace may.
std::string plain(std::string_view text) {
  std::string result(text.substr(0, 100));
  for (char& c : result)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return result;
}

std::string milliseconds(int64_t us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(us) / 1000);
  return text;
}

Json attribute(std::string_view key, const std::string& value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}

// Numbers are strings of 64-bit integers in OTLP's JSON, or doubles.
Json attribute(const LogField& field) {
  if (!field.number) return attribute("plumb." + std::string(field.name), field.value);
  const bool whole = field.value.find_first_not_of("-0123456789") == std::string::npos;
  Json value =
      whole ? Json{{"intValue", field.value}} : Json{{"doubleValue", std::strtod(field.value.c_str(), nullptr)}};
  return {{"key", "plumb." + std::string(field.name)}, {"value", std::move(value)}};
}

}  // namespace

void log_request(const HttpAccess& access, std::string_view route) {
  static constexpr std::string_view kQuiet[] = {"/health", "/health/live", "/metrics", "/", "/web/"};
  const bool quiet = access.status < 400 && std::find(std::begin(kQuiet), std::end(kQuiet), route) != std::end(kQuiet);
  std::vector<LogField> fields = {{"method", access.method.empty() ? "-" : plain(access.method)},
                                  {"path", plain(access.path)},
                                  {"status", std::to_string(access.status), true},
                                  {"ms", milliseconds(access.duration_us), true},
                                  {"bytes", std::to_string(access.bytes), true},
                                  {"id", access.request_id}};
  if (!access.client.empty()) fields.push_back({"client", access.client});
  if (!access.trace.parent_span_id.empty()) fields.push_back({"trace", access.trace.trace_id});
  fields.insert(fields.end(), access.notes.begin(), access.notes.end());
  log_event(quiet ? LogLevel::Debug : LogLevel::Info, "request", fields);
}

Result<std::unique_ptr<TraceFile>> TraceFile::open(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (file < 0) return Error{Code::Environment, "--trace-file " + path, std::strerror(errno), {}};
  return std::unique_ptr<TraceFile>(new TraceFile(file, path));
}

TraceFile::~TraceFile() { ::close(file_); }

void TraceFile::write(const HttpAccess& access, std::string_view route) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t end = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  Json attributes =
      Json::array({attribute("http.request.method", plain(access.method)), attribute("http.route", std::string(route)),
                   attribute({.name = "bytes", .value = std::to_string(access.bytes), .number = true}),
                   attribute("plumb.request_id", access.request_id)});
  attributes.push_back(
      {{"key", "http.response.status_code"}, {"value", {{"intValue", std::to_string(access.status)}}}});
  if (!access.client.empty()) attributes.push_back(attribute("plumb.client", access.client));
  for (const LogField& field : access.notes) attributes.push_back(attribute(field));
  Json span = {{"traceId", access.trace.trace_id},
               {"spanId", access.trace.span_id},
               {"parentSpanId", access.trace.parent_span_id},
               {"name", plain(access.method) + " " + std::string(route)},
               {"kind", 2},  // server
               {"startTimeUnixNano", std::to_string(end - access.duration_us * 1000)},
               {"endTimeUnixNano", std::to_string(end)},
               {"attributes", std::move(attributes)},
               {"status", {{"code", access.status >= 500 ? 2 : 0}}}};
  const Json resource = {{"attributes", Json::array({attribute("service.name", "plumb")})}};
  const Json scope = {{{"scope", {{"name", "plumb"}}}, {"spans", Json::array({std::move(span)})}}};
  const Json line = {{"resourceSpans", {{{"resource", resource}, {"scopeSpans", scope}}}}};
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const std::lock_guard lock(mutex_);  // one write a line: lines of several threads never mix
  const bool written = ::write(file_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!written && !std::exchange(complained_, true))
    log_warn("--trace-file " + path_ + ": " + std::strerror(errno) + "; traces are being lost");
}

}  // namespace plumb
