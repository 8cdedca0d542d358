#include "serve/http_connection.h"

#include <cstdio>
#include <ctime>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include "base/log.h"
#include "serve/trace_context.h"

namespace plumb::http_detail {

namespace http = boost::beast::http;

namespace {

constexpr size_t kPipelinedBytes = size_t{64} * 1024;  // read ahead of the current answer; more stays in the kernel

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

bool header_value_ok(std::string_view value) {
  for (const char c : value)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  return true;
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  if (!header_value_ok(value)) return;
  out.append(name).append(": ").append(value).append("\r\n");
}

void append_date(std::string& out) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[64];
  const size_t size = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  append_header(out, "Date", std::string_view(text, size));
}

}  // namespace

std::string percent_decode(std::string_view text) {
  const auto hex = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0;
    if (escape) {
      result += static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    } else {
      result += text[i];
    }
  }
  return result;
}

bool sane_request_id(std::string_view id) {
  if (id.empty() || id.size() > 128) return false;
  for (const char c : id) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!plain && c != '-' && c != '_' && c != '.' && c != ':') return false;
  }
  return true;
}

std::string make_request_id(std::mt19937_64& random) {
  char text[40];
  std::snprintf(text, sizeof text, "req-%016llx%08llx", static_cast<unsigned long long>(random()),
                static_cast<unsigned long long>(random() >> 32));
  return text;
}

Connection::Connection(std::shared_ptr<Shared> shared, std::shared_ptr<IoThread> thread, Socket socket)
    : shared_(std::move(shared)),
      thread_(std::move(thread)),
      socket_(std::move(socket)),
      buffer_(shared_->options.max_header_bytes + kPipelinedBytes),
      timer_(thread_->io),
      done_(thread_->io) {
  shared_->connections.fetch_add(1, std::memory_order_relaxed);
}

Connection::~Connection() { shared_->connections.fetch_sub(1, std::memory_order_relaxed); }

// ---- reading ----

asio::awaitable<void> Connection::run(std::shared_ptr<Connection> self) {
  self->thread_->connections.insert(self.get());
  try {
    co_await self->serve();
  } catch (const std::exception& thrown) {  // Asio's and Beast's; one connection must not take the others along
    log_error(std::string("a connection failed: ") + thrown.what());
  }
  self->gone();
  if (self->exchange_) self->answer_ended();
  self->thread_->connections.erase(self.get());
}

asio::awaitable<void> Connection::serve() {
  ErrorCode error;
  socket_.non_blocking(true, error);
  for (bool more = !error; more;) {
    RequestParser parser;
    parser.header_limit(static_cast<std::uint32_t>(shared_->options.max_header_bytes));
    parser.body_limit(shared_->options.max_body_bytes);
    const Next next = co_await read_request(parser);
    if (next == Next::Dispatch) {
      keep_alive_ = parser.get().keep_alive();
      co_await answer(take_request(parser));
    } else if (next == Next::Answered) {
      co_await wait_for_answer();
    } else {
      break;
    }
    more = keep_alive_ && !broken_ && !shared_->stopping.load(std::memory_order_relaxed);
  }
  if (!broken_) co_await linger();
}

asio::awaitable<Connection::Next> Connection::read_request(RequestParser& parser) {
  const HttpOptions& options = shared_->options;
  ErrorCode error;
  if (buffer_.size() == 0) {  // wait for the first byte, so that an idle connection isn't a slow head
    enter(Phase::Idle, options.idle_timeout_ms);
    co_await socket_.async_wait(Socket::wait_read, asio::redirect_error(asio::use_awaitable, error));
    if (error || broken_) co_return Next::Close;
  }
  enter(Phase::Head, options.head_timeout_ms);
  co_await http::async_read_header(socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable, error));
  if (error || broken_) {
    on_parse_error(error);
    co_return ended_ ? Next::Answered : Next::Close;
  }
  http_1_0_ = parser.get().version() < 11;
  head_only_ = parser.get().method() == http::verb::head;
  const std::string expect = lower(std::string(parser.get()[http::field::expect]));
  if (!expect.empty() && expect != "100-continue") {
    refuse(417, "the only expectation this server knows is 100-continue");
    co_return Next::Answered;
  }
  enter(Phase::Body, options.body_timeout_ms);
  if (!expect.empty() && !parser.is_done()) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    co_await asio::async_write(socket_, asio::buffer(kContinue.data(), kContinue.size()),
                               asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return Next::Close;
  }
  if (!parser.is_done()) {
    co_await http::async_read(socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable, error));
    if (error || broken_) {
      on_parse_error(error);
      co_return ended_ ? Next::Answered : Next::Close;
    }
  }
  co_return Next::Dispatch;
}

// Answers what can be answered; a connection that just closed is left alone.
void Connection::on_parse_error(const ErrorCode& error) {
  if (broken_ || error == http::error::end_of_stream || error == http::error::partial_message) return;
  if (timed_out_) return refuse(408, "the request did not arrive in time");
  if (error == http::error::body_limit) {
    return refuse(413, "the body is over the limit of " + std::to_string(shared_->options.max_body_bytes) + " bytes");
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return refuse(
        431, "the request's head is over the limit of " + std::to_string(shared_->options.max_header_bytes) + " bytes");
  }
  if (error.category() == http::make_error_code(http::error::bad_method).category()) {
    refuse(400, "malformed HTTP: " + error.message());
  }
}

void Connection::refuse(int status, std::string_view message) {
  phase_ = Phase::Answer;
  shared_->answering.fetch_add(1, std::memory_order_relaxed);
  keep_alive_ = false;
  answer_bytes_ = 0;
  HttpResponse response = shared_->handlers.make_error(status, message);
  response.headers.emplace_back("x-request-id", make_request_id(thread_->ids));
  append_head(response, /*chunked=*/false, response.body.size());
  if (!head_only_) out_ += response.body;
  ended_ = true;
  flush();
}

HttpRequest Connection::take_request(RequestParser& parser) {
  auto message = parser.release();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t question = target.find('?');
  request.path = percent_decode(std::string_view(target).substr(0, question));
  if (question != std::string::npos) request.query = target.substr(question + 1);
  const std::string& prefix = shared_->options.prefix;
  if (!prefix.empty() && request.path.starts_with(prefix + "/")) request.path.erase(0, prefix.size());
  for (const auto& field : message) {
    request.headers.emplace_back(lower(std::string_view(field.name_string().data(), field.name_string().size())),
                                 std::string(field.value()));
  }
  request.body = std::move(message.body());
  const std::string_view id = request.header("x-request-id");
  request.request_id = sane_request_id(id) ? std::string(id) : make_request_id(thread_->ids);
  request.trace = read_traceparent(request.header("traceparent"), thread_->ids);
  allow_headers_ = std::string(request.header("access-control-request-headers"));
  return request;
}

// ---- answering ----

asio::awaitable<void> Connection::answer(HttpRequest request) {
  phase_ = Phase::Answer;
  phase_due_ = Clock::time_point::max();
  shared_->answering.fetch_add(1, std::memory_order_relaxed);
  answer_bytes_ = 0;
  streaming_ = ended_ = false;
  exchange_ = std::make_shared<Exchange>(std::move(request));
  exchange_->connection_ = weak_from_this();
  if (exchange_->request_.method == "OPTIONS") {
    exchange_->respond({.status = 204, .body = {}});
  } else {
    shared_->handlers.on_request(exchange_);
    flush();
    if (!ended_) watch_for_disconnect();
  }
  co_await wait_for_answer();
}

asio::awaitable<void> Connection::wait_for_answer() {
  while (!broken_ && !(ended_ && out_.empty() && sending_.empty())) {
    done_.expires_at(Clock::time_point::max());
    ErrorCode ignored;
    co_await done_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  answer_ended();
}

// The one place where an exchange's callbacks are dropped: never below one of them on the stack.
void Connection::answer_ended() {
  shared_->answering.fetch_sub(1, std::memory_order_relaxed);
  HttpAccess access{.status = ended_ ? status_ : 499, .bytes = answer_bytes_};
  if (exchange_) {
    exchange_->connected_ = false;
    exchange_->on_wake = nullptr;
    exchange_->on_disconnect = nullptr;
    access.method = exchange_->request_.method;
    access.path = exchange_->request_.path;
    access.request_id = exchange_->request_.request_id;
    access.client = std::move(exchange_->client);
    access.trace = std::move(exchange_->request_.trace);
    access.notes = std::move(exchange_->notes);
    access.duration_us =
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - exchange_->started_).count();
    exchange_.reset();
  }
  ended_ = false;
  streaming_ = false;
  if (shared_->handlers.on_done) shared_->handlers.on_done(access);
}

void Connection::append_cors() {
  const HttpOptions& options = shared_->options;
  if (options.cors_origin.empty()) return;
  append_header(out_, "Access-Control-Allow-Origin", options.cors_origin);
  append_header(out_, "Access-Control-Expose-Headers",
                "x-request-id, traceparent, retry-after, x-should-retry, x-ignored-fields");
  if (status_ != 204) return;
  append_header(out_, "Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
  append_header(out_, "Access-Control-Allow-Headers", allow_headers_.empty() ? "*" : allow_headers_);
  append_header(out_, "Access-Control-Max-Age", "600");
}

void Connection::append_head(const HttpResponse& response, bool chunked, size_t content_length) {
  status_ = response.status;
  out_ += "HTTP/1.1 " + std::to_string(response.status) + ' ';
  out_.append(status_text(response.status)).append("\r\n");
  append_date(out_);
  if (response.status == 204) {
    append_header(out_, "Allow", "GET, HEAD, POST, OPTIONS");
  } else {
    append_header(out_, "Content-Type", response.content_type);
    if (chunked) append_header(out_, "Transfer-Encoding", "chunked");
    if (!streaming_) append_header(out_, "Content-Length", std::to_string(content_length));
  }
  if (exchange_) {
    append_header(out_, "x-request-id", exchange_->request_.request_id);
    append_header(out_, "traceparent", traceparent_of(exchange_->request_.trace));
  }
  for (const auto& [name, value] : response.headers) append_header(out_, name, value);
  append_cors();
  if (!keep_alive_) append_header(out_, "Connection", "close");
  if (keep_alive_ && http_1_0_) append_header(out_, "Connection", "keep-alive");
  out_ += "\r\n";
}

void Connection::respond(HttpResponse&& response) {
  if (broken_ || ended_ || streaming_) return;
  append_head(response, /*chunked=*/false, response.body.size());
  if (!head_only_ && response.status != 204) {
    out_ += response.body;
    answer_bytes_ += static_cast<int64_t>(response.body.size());
  }
  ended_ = true;
  flush();
}

void Connection::begin_stream(HttpResponse&& head) {
  if (broken_ || ended_ || streaming_) return;
  streaming_ = true;
  chunked_ = !http_1_0_;  // an older client reads to the end of the connection
  if (http_1_0_) keep_alive_ = false;
  append_head(head, chunked_, 0);
  last_write_ = Clock::now();
  arm(last_write_ + std::chrono::milliseconds(shared_->options.sse_keepalive_ms));
}

void Connection::write_event_bytes(std::string_view bytes) {
  if (broken_ || ended_ || !streaming_ || bytes.empty()) return;
  if (chunked_) {
    char size[24];
    const int digits = std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    out_.append(size, static_cast<size_t>(digits)).append(bytes).append("\r\n");
  } else {
    out_ += bytes;
  }
  answer_bytes_ += static_cast<int64_t>(bytes.size());
}

void Connection::end_stream(bool whole) {
  if (broken_ || ended_ || !streaming_) return;
  if (whole && chunked_) out_ += "0\r\n\r\n";
  if (!whole) keep_alive_ = false;
  ended_ = true;
  flush();
}

// ---- writing ----

void Connection::flush() {
  if (broken_ || !sending_.empty() || out_.empty()) return;
  sending_.swap(out_);
  sent_ = 0;
  write_more();
}

// Most answers fit the socket's buffer: one system call and no trip through the reactor.
void Connection::write_more() {
  while (!sending_.empty()) {
    ErrorCode error;
    const size_t written =
        socket_.write_some(asio::const_buffer(sending_.data() + sent_, sending_.size() - sent_), error);
    if (error == asio::error::would_block || error == asio::error::try_again) break;
    if (error) return gone();
    sent_ += written;
    last_write_ = Clock::now();
    if (sent_ < sending_.size()) continue;
    sending_.clear();
    sending_.swap(out_);
    sent_ = 0;
  }
  if (sending_.empty()) {
    if (ended_) done_.cancel();
    return;
  }
  if (waiting_writable_) return;
  waiting_writable_ = true;
  if (sent_ == 0) last_write_ = Clock::now();
  arm(last_write_ + std::chrono::milliseconds(shared_->options.write_timeout_ms));
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const ErrorCode& error) {
    self->waiting_writable_ = false;
    if (self->broken_) return;
    if (error) return self->gone();
    self->write_more();
  });
}

// Lets the last answer arrive: closing with unread input would reset the connection and could take it away again.
asio::awaitable<void> Connection::linger() {
  ErrorCode error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error) co_return;
  enter(Phase::Linger, 2000);
  std::string scrap(kPipelinedBytes, '\0');
  for (size_t total = 0; !error && total < 4 * shared_->options.max_body_bytes;) {
    const size_t bytes =
        co_await socket_.async_read_some(asio::buffer(scrap), asio::redirect_error(asio::use_awaitable, error));
    total += bytes;
  }
}

// ---- the client leaves ----

// A half-closed connection counts as gone: it can't be told from a client that left, and the work would go on for
// nobody.
void Connection::watch_for_disconnect() {
  if (watching_ || broken_ || buffer_.size() >= kPipelinedBytes) return;
  watching_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const ErrorCode& error) {
    self->watching_ = false;
    if (!error && self->phase_ == Phase::Answer && self->exchange_) self->on_readable();
  });
}

void Connection::on_readable() {
  ErrorCode error;
  const size_t bytes = socket_.read_some(buffer_.prepare(4096), error);
  if (error == asio::error::would_block || error == asio::error::try_again) return watch_for_disconnect();
  if (error) return gone();
  buffer_.commit(bytes);  // the start of the next request
  watch_for_disconnect();
}

void Connection::gone() {
  if (broken_) return;
  broken_ = true;
  ErrorCode ignored;
  socket_.close(ignored);
  out_.clear();
  sending_.clear();
  timer_.cancel();
  done_.cancel();
  if (!exchange_) return;
  exchange_->connected_ = false;
  if (!ended_ && exchange_->on_disconnect) exchange_->on_disconnect();
}

// ---- deadlines ----

void Connection::enter(Phase phase, int timeout_ms) {
  phase_ = phase;
  timed_out_ = false;
  phase_due_ = Clock::now() + std::chrono::milliseconds(timeout_ms);
  arm(phase_due_);
}

// Deadlines mostly move away, so a timer that is due too early is left to ring and look again.
void Connection::arm(Clock::time_point due) {
  if (due >= timer_due_ || broken_) return;
  timer_due_ = due;
  timer_.expires_at(due);
  timer_.async_wait([self = shared_from_this()](const ErrorCode& error) {
    if (!error && !self->broken_) self->on_timer();
  });
}

void Connection::on_timer() {
  timer_due_ = Clock::time_point::max();
  const Clock::time_point now = Clock::now();
  const HttpOptions& options = shared_->options;
  if (phase_ != Phase::Answer) {
    if (now < phase_due_) return arm(phase_due_);
    timed_out_ = true;
    if (phase_ == Phase::Idle) return gone();
    ErrorCode ignored;
    socket_.cancel(ignored);
    return;
  }
  if (!sending_.empty()) {
    const Clock::time_point due = last_write_ + std::chrono::milliseconds(options.write_timeout_ms);
    if (now >= due) return gone();
    return arm(due);
  }
  if (!streaming_ || ended_) return;
  if (now >= last_write_ + std::chrono::milliseconds(options.sse_keepalive_ms)) {
    write_event_bytes(": keep-alive\n\n");
    flush();
  }
  arm(last_write_ + std::chrono::milliseconds(options.sse_keepalive_ms));
}

}  // namespace plumb::http_detail
