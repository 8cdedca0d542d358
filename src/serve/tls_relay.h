// TLS in front of a connection: decrypts into one end of a socket pair and encrypts what comes out of it, so that
// Connection knows plain bytes alone. Included by http.cpp only, since it pulls in Asio and OpenSSL.
#pragma once

#include <utility>  // Asio 1.74 uses std::exchange without it

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>

#include <memory>

#include "base/result.h"
#include "serve/http_connection.h"

namespace plumb::http_detail {

using TlsContext = std::shared_ptr<asio::ssl::context>;

// TLS 1.2 or newer with this chain and key. Fails (Usage) when they can't be read or don't belong together.
Result<TlsContext> make_tls(const std::string& cert_path, const std::string& key_path);

// Until either side ends. `plain` is the other end of the pair whose first the Connection has.
asio::awaitable<void> relay_tls(TlsContext tls, std::shared_ptr<IoThread> thread, asio::ip::tcp::socket encrypted,
                                asio::local::stream_protocol::socket plain, const HttpOptions& options);

}  // namespace plumb::http_detail
