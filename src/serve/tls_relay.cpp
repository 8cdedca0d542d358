#include "serve/tls_relay.h"

#include <array>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace plumb::http_detail {

namespace ssl = asio::ssl;

namespace {

constexpr auto kGoodbye = std::chrono::seconds(1);  // for the peer's answer to our closing

struct Relay : std::enable_shared_from_this<Relay> {
  Relay(TlsContext context, std::shared_ptr<IoThread> io, asio::ip::tcp::socket socket,
        asio::local::stream_protocol::socket pair)
      : tls(std::move(context)),
        thread(std::move(io)),
        encrypted(std::move(socket), *tls),
        plain(std::move(pair)),
        timer(thread->io) {
    thread->closers[this] = [this] { close(); };
  }
  ~Relay() { thread->closers.erase(this); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void close() {
    ErrorCode ignored;
    encrypted.lowest_layer().close(ignored);
    plain.close(ignored);
    timer.cancel();
  }
  // Closes both sides unless disarmed or armed again in time.
  void arm(Clock::duration time) {
    timer.expires_after(time);
    timer.async_wait([self = shared_from_this()](const ErrorCode& error) {
      if (!error) self->close();
    });
  }

  TlsContext tls;
  std::shared_ptr<IoThread> thread;
  ssl::stream<asio::ip::tcp::socket> encrypted;
  asio::local::stream_protocol::socket plain;
  asio::steady_timer timer;
};

asio::awaitable<void> decrypt(std::shared_ptr<Relay> relay) {
  std::array<char, 16384> bytes{};
  ErrorCode error;
  while (true) {
    const size_t got = co_await relay->encrypted.async_read_some(asio::buffer(bytes),
                                                                 asio::redirect_error(asio::use_awaitable, error));
    if (error) break;
    co_await asio::async_write(relay->plain, asio::buffer(bytes.data(), got),
                               asio::redirect_error(asio::use_awaitable, error));
    if (error) break;
  }
  relay->plain.shutdown(asio::socket_base::shutdown_send, error);  // the Connection sees that the client has left
}

asio::awaitable<void> encrypt(std::shared_ptr<Relay> relay, std::chrono::milliseconds write_timeout) {
  std::array<char, 16384> bytes{};
  ErrorCode error;
  while (true) {
    const size_t got =
        co_await relay->plain.async_read_some(asio::buffer(bytes), asio::redirect_error(asio::use_awaitable, error));
    if (error) break;
    relay->arm(write_timeout);
    co_await asio::async_write(relay->encrypted, asio::buffer(bytes.data(), got),
                               asio::redirect_error(asio::use_awaitable, error));
    relay->timer.cancel();
    if (error) break;
  }
  relay->arm(kGoodbye);
  co_await relay->encrypted.async_shutdown(asio::redirect_error(asio::use_awaitable, error));
  relay->close();
}

}  // namespace

Result<TlsContext> make_tls(const std::string& cert_path, const std::string& key_path) {
  auto tls = std::make_shared<ssl::context>(ssl::context::tls_server);
  ErrorCode error;
  const auto refuse = [&](const std::string& what) {
    return Error{
        Code::Usage, what, error.message(), {"a PEM file that this user can read", "a key of that certificate"}};
  };
  tls->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                   ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 | ssl::context::no_compression);
  tls->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  tls->use_certificate_chain_file(cert_path, error);
  if (error) return refuse("--tls-cert " + cert_path);
  tls->use_private_key_file(key_path, ssl::context::pem, error);
  if (error) return refuse("--tls-key " + key_path);
  return tls;
}

asio::awaitable<void> relay_tls(TlsContext tls, std::shared_ptr<IoThread> thread, asio::ip::tcp::socket encrypted,
                                asio::local::stream_protocol::socket plain, const HttpOptions& options) {
  const std::chrono::milliseconds handshake_timeout(options.head_timeout_ms), write_timeout(options.write_timeout_ms);
  const auto relay = std::make_shared<Relay>(std::move(tls), std::move(thread), std::move(encrypted), std::move(plain));
  relay->arm(handshake_timeout);
  ErrorCode error;
  co_await relay->encrypted.async_handshake(ssl::stream_base::server, asio::redirect_error(asio::use_awaitable, error));
  relay->timer.cancel();
  if (error) {
    relay->close();
    co_return;
  }
  asio::co_spawn(relay->thread->io, decrypt(relay), asio::detached);
  co_await encrypt(relay, write_timeout);
}

}  // namespace plumb::http_detail
