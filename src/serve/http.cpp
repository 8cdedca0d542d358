#include "serve/http.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "serve/http_connection.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/log.h"
#include "serve/tls_relay.h"

namespace plumb {

using http_detail::Clock;
using http_detail::Connection;
using http_detail::ErrorCode;
using http_detail::IoThread;
using http_detail::Shared;
using http_detail::Socket;
namespace asio = boost::asio;

std::string_view HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_case_name) return value;
  return {};
}

std::string_view status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

// ---- Exchange ----

// What is held goes back before the last bytes leave: who has read them may ask again.
void Exchange::respond(HttpResponse response) {
  held.reset();
  if (const auto connection = connection_.lock(); connection && connected_) connection->respond(std::move(response));
}
void Exchange::begin_stream(HttpResponse head) {
  if (const auto connection = connection_.lock(); connection && connected_) connection->begin_stream(std::move(head));
}
void Exchange::write(std::string_view bytes) {
  if (const auto connection = connection_.lock(); connection && connected_) connection->write_event_bytes(bytes);
}
void Exchange::end_stream() {
  held.reset();
  if (const auto connection = connection_.lock(); connection && connected_) connection->end_stream(/*whole=*/true);
}
void Exchange::abort_stream() {
  held.reset();
  if (const auto connection = connection_.lock(); connection && connected_) connection->end_stream(/*whole=*/false);
}

void Exchange::wake() {
  if (woken_.exchange(true, std::memory_order_acq_rel)) return;
  post([this] {
    woken_.store(false, std::memory_order_release);
    if (on_wake) on_wake();
  });
}

void Exchange::post(std::function<void()> job) {
  const auto connection = connection_.lock();
  if (!connection) return;
  asio::post(connection->io(), [self = shared_from_this(), run = std::move(job)] {
    if (!self->connected_) return;
    run();
    if (const auto open = self->connection_.lock()) open->flush();
  });
}

// ---- HttpServer ----

namespace {

Error cannot_listen(const std::string& where, const ErrorCode& error) {
  std::vector<std::string> works;
  if (error == asio::error::address_in_use)
    works = {"another --port", "--port 0 for any free one", "ending the process that holds it"};
  if (error == asio::error::access_denied) works = {"--port 1024 or above"};
  return {Code::Environment, "cannot listen on " + where, error.message(), std::move(works)};
}

// Enough file descriptors for the connections asked for, `each` taking so many, or a warning that names the shortage
// and a lower limit.
int connections_allowed(int wanted, int each) {
  constexpr int kOthers = 128;  // shards, epoll, log, libraries
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t need = static_cast<rlim_t>(wanted) * static_cast<rlim_t>(each) + kOthers;
  if (limit.rlim_cur < need) {
    limit.rlim_cur = std::min(need, limit.rlim_max);
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    (void)getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= need) return wanted;
  const int allowed = std::max(16, (static_cast<int>(limit.rlim_cur) - kOthers) / each);
  log_warn("file descriptors are limited to " + std::to_string(limit.rlim_cur) + ": at most " +
           std::to_string(allowed) + " connections instead of " + std::to_string(wanted) + "; raise it with ulimit -n");
  return allowed;
}

int default_io_threads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 4); }

}  // namespace

struct HttpServer::Impl {
  using Tcp = asio::ip::tcp;
  using Local = asio::local::stream_protocol;
  using Work = asio::executor_work_guard<asio::io_context::executor_type>;

  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::vector<std::shared_ptr<IoThread>> threads{};
  std::vector<std::unique_ptr<Tcp::acceptor>> tcp{};
  std::unique_ptr<Local::acceptor> local{};
  http_detail::TlsContext tls{};  // null: the port speaks plain HTTP
  std::vector<Work> work{};
  std::vector<std::thread> running{};
  size_t next_thread = 0;
  uint16_t port = 0;

  Status listen_tcp();
  ErrorCode listen_on(const Tcp::endpoint& endpoint, bool v6_only);
  Status listen_local();
  template <class Protocol>
  asio::awaitable<void> accept(asio::basic_socket_acceptor<Protocol>& acceptor);
  void adopt(Socket socket, const std::shared_ptr<IoThread>& thread);
  ErrorCode adopt_tls(Tcp::socket socket, const std::shared_ptr<IoThread>& thread);
};

ErrorCode HttpServer::Impl::listen_on(const Tcp::endpoint& endpoint, bool v6_only) {
  auto acceptor = std::make_unique<Tcp::acceptor>(threads[0]->io);
  ErrorCode error;
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error && endpoint.address().is_v6()) acceptor->set_option(asio::ip::v6_only(v6_only), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(Tcp::acceptor::max_listen_connections, error);
  if (error) return error;
  if (port == 0) port = acceptor->local_endpoint(error).port();
  tcp.push_back(std::move(acceptor));
  return {};
}

Status HttpServer::Impl::listen_tcp() {
  const HttpOptions& options = shared->options;
  const std::string where = options.host + ':' + std::to_string(options.port);
  ErrorCode error;
  if (options.host.empty()) {  // every address: one dual-stack socket, or IPv4 alone where the system lacks IPv6
    error = listen_on(Tcp::endpoint(Tcp::v6(), options.port), /*v6_only=*/false);
    if (error && error != asio::error::address_in_use) error = listen_on(Tcp::endpoint(Tcp::v4(), options.port), false);
    if (error) return cannot_listen(where, error);
    return Ok{};
  }
  Tcp::resolver resolver(threads[0]->io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), Tcp::resolver::passive, error);
  if (error) return cannot_listen(where, error);
  for (const auto& entry : found) {  // a name such as localhost may stand for ::1 and 127.0.0.1
    Tcp::endpoint endpoint = entry.endpoint();
    if (port != 0) endpoint.port(port);
    error = listen_on(endpoint, /*v6_only=*/true);
    const bool absent = error == boost::system::errc::address_not_available ||
                        error == boost::system::errc::address_family_not_supported;
    if (error && !absent) return cannot_listen(where, error);
  }
  if (tcp.empty()) return cannot_listen(where, error);
  return Ok{};
}

Status HttpServer::Impl::listen_local() {
  const std::string& path = shared->options.unix_socket;
  if (path.empty()) return Ok{};
  if (path.size() >= 108)
    return Error{Code::Usage, "--unix-socket " + path, "the path is over 107 bytes", {"a shorter path"}};
  local = std::make_unique<Local::acceptor>(threads[0]->io);
  const Local::endpoint endpoint(path);
  ErrorCode error;
  Local::socket probe(threads[0]->io);
  probe.connect(endpoint, error);
  if (!error) return cannot_listen(path, asio::error::address_in_use);
  // Connecting to a file that is no socket is refused too; only a socket left behind by a process that is gone may go.
  std::error_code unknown;
  const bool left_behind = error == asio::error::connection_refused && std::filesystem::is_socket(path, unknown);
  if (left_behind) ::unlink(path.c_str());
  error.clear();
  local->open(endpoint.protocol(), error);
  if (!error) local->bind(endpoint, error);
  if (!error) local->listen(Local::acceptor::max_listen_connections, error);
  if (error) return cannot_listen(path, error);
  return Ok{};
}

template <class Protocol>
asio::awaitable<void> HttpServer::Impl::accept(asio::basic_socket_acceptor<Protocol>& acceptor) {
  while (acceptor.is_open()) {
    const std::shared_ptr<IoThread> thread = threads[next_thread++ % threads.size()];
    ErrorCode error;
    typename Protocol::socket socket(thread->io);
    co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
    if (error) {  // out of descriptors or memory: wait for some to come back rather than spin
      log_warn("cannot accept a connection: " + error.message());
      asio::steady_timer pause(threads[0]->io, std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    if constexpr (std::is_same_v<Protocol, Tcp>) {
      socket.set_option(Tcp::no_delay(true), error);
      if (tls) {
        if (error = adopt_tls(std::move(socket), thread); error) log_warn("cannot relay TLS: " + error.message());
        continue;
      }
    }
    adopt(Socket(std::move(socket)), thread);
  }
}

void HttpServer::Impl::adopt(Socket socket, const std::shared_ptr<IoThread>& thread) {
  if (shared->connections.load(std::memory_order_relaxed) >= shared->options.max_connections) {
    const HttpResponse response = shared->handlers.make_error(503, "the server is at its limit of connections");
    const std::string text =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n" +
        std::string("Connection: close\r\nContent-Length: ") + std::to_string(response.body.size()) + "\r\n\r\n" +
        response.body;
    ErrorCode ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(text), ignored);
    return;
  }
  const auto connection = std::make_shared<Connection>(shared, thread, std::move(socket));
  asio::post(thread->io,
             [connection] { asio::co_spawn(connection->io(), Connection::run(connection), asio::detached); });
}

ErrorCode HttpServer::Impl::adopt_tls(Tcp::socket socket, const std::shared_ptr<IoThread>& thread) {
  Local::socket ours(thread->io), theirs(thread->io);
  ErrorCode error;
  asio::local::connect_pair(ours, theirs, error);
  if (error) return error;
  asio::post(thread->io,
             [context = tls, thread, outer = std::move(socket), inner = std::move(theirs), all = shared]() mutable {
               asio::co_spawn(thread->io,
                              http_detail::relay_tls(context, thread, std::move(outer), std::move(inner), all->options),
                              asio::detached);
             });
  adopt(Socket(std::move(ours)), thread);
  return {};
}

HttpServer::HttpServer(HttpOptions options, HttpHandlers handlers) : impl_(std::make_unique<Impl>()) {
  impl_->shared->options = std::move(options);
  impl_->shared->handlers = std::move(handlers);
}

HttpServer::~HttpServer() { stop(0); }

Status HttpServer::start() {
  HttpOptions& options = impl_->shared->options;
  options.max_connections = connections_allowed(options.max_connections, options.tls_cert.empty() ? 1 : 3);
  while (options.prefix.ends_with('/')) options.prefix.pop_back();
  if (!options.tls_cert.empty()) {
    PLUMB_TRY(impl_->tls, http_detail::make_tls(options.tls_cert, options.tls_key));
  }
  const int count = options.io_threads > 0 ? options.io_threads : default_io_threads();
  for (int i = 0; i < count; ++i) impl_->threads.push_back(std::make_shared<IoThread>());
  PLUMB_TRY_STATUS(impl_->listen_tcp());
  PLUMB_TRY_STATUS(impl_->listen_local());
  for (auto& acceptor : impl_->tcp) {
    asio::co_spawn(impl_->threads[0]->io, impl_->accept<Impl::Tcp>(*acceptor), asio::detached);
  }
  if (impl_->local) asio::co_spawn(impl_->threads[0]->io, impl_->accept<Impl::Local>(*impl_->local), asio::detached);
  for (const auto& thread : impl_->threads) {
    impl_->work.emplace_back(thread->io.get_executor());
    impl_->running.emplace_back([thread] { thread->io.run(); });
  }
  return Ok{};
}

uint16_t HttpServer::port() const { return impl_->port; }
int HttpServer::connections() const { return impl_->shared->connections.load(std::memory_order_relaxed); }

void HttpServer::stop(int grace_ms) {
  if (impl_->running.empty()) return;
  impl_->shared->stopping.store(true);
  asio::post(impl_->threads[0]->io, [impl = impl_.get()] {
    ErrorCode ignored;
    for (auto& acceptor : impl->tcp) acceptor->close(ignored);
    if (impl->local) impl->local->close(ignored);
  });
  const auto until = Clock::now() + std::chrono::milliseconds(grace_ms);
  while (impl_->shared->answering.load() > 0 && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (const auto& thread : impl_->threads) {
    asio::post(thread->io, [thread] {
      const std::vector<Connection*> open(thread->connections.begin(), thread->connections.end());
      for (Connection* connection : open) connection->gone();
      for (const auto& [owner, close] : thread->closers) close();
    });
  }
  impl_->work.clear();
  for (std::thread& thread : impl_->running) thread.join();  // each ends when its last connection has
  impl_->running.clear();
  if (impl_->local) ::unlink(impl_->shared->options.unix_socket.c_str());
}

}  // namespace plumb
