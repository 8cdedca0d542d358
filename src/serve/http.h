// The asynchronous HTTP/1.1 server. All Asio and Beast code is in http.cpp; handlers see only what stands here.
//
// A connection lives on one I/O thread from accept to close, and so do all calls into its Exchange's handlers: no
// locks. `Exchange::wake` and `Exchange::post` are the two ways in from other threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/result.h"

namespace plumb {

// W3C trace context. The answer and what the server records carry our own span under the caller's trace.
struct TraceContext {
  std::string trace_id{};        // 32 hex digits; the caller's, or a new one
  std::string span_id{};         // 16 hex digits, ours
  std::string parent_span_id{};  // the caller's; "" without a valid traceparent
  bool sampled = false;          // the caller's wish
};

struct HttpRequest {
  std::string method{};
  std::string path{};  // percent-decoded, without the query and the configured prefix
  std::string query{};
  std::vector<std::pair<std::string, std::string>> headers{};  // names in lower case
  std::string body{};
  std::string request_id{};  // the caller's x-request-id when it is a sane token, else one of ours
  TraceContext trace{};

  // "" when absent.
  std::string_view header(std::string_view lower_case_name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body{};
  std::vector<std::pair<std::string, std::string>> headers{};
};

namespace http_detail {
class Connection;
}

// One request and the answer to it. Everything but wake() and post() belongs to the connection's I/O thread.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  explicit Exchange(HttpRequest request) : request_(std::move(request)) {}

  HttpRequest& request() { return request_; }
  bool connected() const { return connected_; }

  // The whole answer. Like begin_stream and end_stream it may be called once, and does nothing when the client is gone.
  void respond(HttpResponse response);
  // A streamed one: head, then any number of writes, then end. Writes made in one turn of the I/O thread leave in one
  // system call. abort_stream closes the connection without the mark of a whole answer.
  void begin_stream(HttpResponse head);
  void write(std::string_view bytes);
  void end_stream();
  void abort_stream();

  // Called when the client is gone before the answer was whole; at most once, and never after the answer's end.
  std::function<void()> on_disconnect{};
  // Called after wake(); several wakes before the I/O thread gets there are one call.
  std::function<void()> on_wake{};

  // Set by the router: who asks ("" without keys), how far ahead it may run, what is given back after the answer.
  std::string client{};
  int lowest_priority = std::numeric_limits<int>::min();
  std::shared_ptr<void> held{};
  // For the line of this request in the log and for its trace; never text of prompts or answers.
  std::vector<LogField> notes{};

  // From any thread.
  void wake();
  void post(std::function<void()> job);

  std::chrono::steady_clock::time_point started() const { return started_; }

 private:
  friend class http_detail::Connection;
  HttpRequest request_;
  std::weak_ptr<http_detail::Connection> connection_{};
  std::atomic<bool> woken_{false};
  bool connected_ = true;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

struct HttpOptions {
  std::string host = "127.0.0.1";     // name, IPv4 or IPv6 address; "" listens on every address
  uint16_t port = 8000;               // 0: any free port
  std::string unix_socket{};          // path; in addition to the port
  std::string tls_cert{}, tls_key{};  // PEM files: the port speaks TLS, the socket stays plain
  std::string prefix{};               // "/x": paths are served with and without it
  std::string cors_origin = "*";      // "": no CORS headers
  int io_threads = 0;                 // 0: one for every four cores, 1 to 4
  int max_connections = 8192;
  size_t max_header_bytes = size_t{64} * 1024;
  size_t max_body_bytes = size_t{32} * 1024 * 1024;
  int head_timeout_ms = 20'000;   // from the first byte to the end of the head
  int body_timeout_ms = 120'000;  // the whole body
  int idle_timeout_ms = 75'000;   // keep-alive without a request
  int write_timeout_ms = 60'000;  // a socket that takes no byte for so long is dropped
  int sse_keepalive_ms = 15'000;  // a comment line when a stream was silent for so long
};

// Called for each answered request: metrics and the access log.
struct HttpAccess {
  std::string method{}, path{}, request_id{};
  int status = 0;  // 499: the client left before the answer
  int64_t duration_us = 0;
  int64_t bytes = 0;
  std::string client{};
  TraceContext trace{};
  std::vector<LogField> notes{};
};

struct HttpHandlers {
  std::function<void(std::shared_ptr<Exchange>)> on_request{};
  std::function<void(const HttpAccess&)> on_done{};
  // Body of an answer that the HTTP layer gives by itself (400, 408, 413, 431, 503): JSON of the error.
  std::function<HttpResponse(int status, std::string_view message)> make_error{};
};

class HttpServer {
 public:
  HttpServer(HttpOptions options, HttpHandlers handlers);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds and starts the threads. Fails with Code::Environment when the address cannot be had.
  Status start();
  uint16_t port() const;
  int connections() const;
  // No new connections; answers under way get `grace_ms` to leave, then everything is closed and the threads joined.
  void stop(int grace_ms);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string_view status_text(int status);

}  // namespace plumb
