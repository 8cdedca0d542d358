// One line for each answered request: in the log, and as an OpenTelemetry span in --trace-file.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"
#include "serve/http.h"

namespace plumb {

// Answered probes, scrapes and files of the web page are of level debug: they come every few seconds.
void log_request(const HttpAccess& access, std::string_view route);

// Spans in OTLP's JSON encoding, one `resourceSpans` object a line, as collectors read them from files.
class TraceFile {
 public:
  // Appends to `path`. Fails (Environment) when it can't be opened.
  static Result<std::unique_ptr<TraceFile>> open(const std::string& path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // From any thread. `route` is one of our own paths.
  void write(const HttpAccess& access, std::string_view route);

 private:
  TraceFile(int file, std::string path) : file_(file), path_(std::move(path)) {}
  int file_ = -1;
  std::string path_{};
  std::mutex mutex_{};
  bool complained_ = false;
};

}  // namespace plumb
