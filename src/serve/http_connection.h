// One connection: reads requests, hands each to the server's handler as an Exchange, writes what comes back. Included
// by http.cpp alone, since it pulls in Asio and Beast.
#pragma once

#include <utility>  // Asio 1.74 uses std::exchange without it

#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "serve/http.h"

namespace plumb::http_detail {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using ErrorCode = boost::system::error_code;
using Socket = asio::generic::stream_protocol::socket;
using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

class Connection;

struct IoThread {
  asio::io_context io{1};
  std::unordered_set<Connection*> connections{};                     // touched on this thread only, as is the next
  std::unordered_map<const void*, std::function<void()>> closers{};  // what else must be closed at the end
  std::mt19937_64 ids{std::random_device{}()};
};

// What all connections share; outlives them.
struct Shared {
  HttpOptions options{};
  HttpHandlers handlers{};
  std::atomic<int> connections{0};
  std::atomic<int> answering{0};
  std::atomic<bool> stopping{false};
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Shared> shared, std::shared_ptr<IoThread> thread, Socket socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Takes the connection along: the first step of a coroutine runs after its caller has returned.
  static asio::awaitable<void> run(std::shared_ptr<Connection> self);
  asio::io_context& io() { return thread_->io; }
  // The client is gone, or is to be dropped.
  void gone();

  void respond(HttpResponse&& response);
  void begin_stream(HttpResponse&& head);
  void write_event_bytes(std::string_view bytes);
  void end_stream(bool whole);
  // Sends what has gathered; called at the end of each turn that may have written.
  void flush();

 private:
  enum class Phase { Idle, Head, Body, Answer, Linger };
  enum class Next { Dispatch, Answered, Close };

  asio::awaitable<void> serve();
  asio::awaitable<Next> read_request(RequestParser& parser);
  asio::awaitable<void> answer(HttpRequest request);
  asio::awaitable<void> wait_for_answer();
  asio::awaitable<void> linger();
  void refuse(int status, std::string_view message);
  void on_parse_error(const ErrorCode& error);
  HttpRequest take_request(RequestParser& parser);
  void append_head(const HttpResponse& response, bool chunked, size_t content_length);
  void append_cors();
  void write_more();
  void answer_ended();
  void watch_for_disconnect();
  void on_readable();
  void enter(Phase phase, int timeout_ms);
  void arm(Clock::time_point due);
  void on_timer();

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<IoThread> thread_;
  Socket socket_;
  boost::beast::flat_buffer buffer_;
  asio::steady_timer timer_;  // deadlines of the phase, of a stuck write, and the keep-alive comment
  asio::steady_timer done_;   // cancelled when the answer is out or the client gone
  std::shared_ptr<Exchange> exchange_{};

  Phase phase_ = Phase::Idle;
  Clock::time_point phase_due_ = Clock::time_point::max();
  Clock::time_point timer_due_ = Clock::time_point::max();
  Clock::time_point last_write_{};
  std::string out_{};      // gathered, not yet handed to the socket
  std::string sending_{};  // being sent
  size_t sent_ = 0;
  std::string allow_headers_{};  // asked for by a CORS preflight
  int64_t answer_bytes_ = 0;
  int status_ = 0;
  bool watching_ = false;
  bool waiting_writable_ = false;
  bool timed_out_ = false;
  bool keep_alive_ = false;
  bool http_1_0_ = false;
  bool head_only_ = false;
  bool streaming_ = false;
  bool chunked_ = false;
  bool ended_ = false;   // the last byte of the answer is in out_ or sending_
  bool broken_ = false;  // no more bytes in either direction
};

std::string percent_decode(std::string_view text);
bool sane_request_id(std::string_view id);
std::string make_request_id(std::mt19937_64& random);

}  // namespace plumb::http_detail
