#include "cli/load_client.h"

#include <utility>  // Asio 1.74 uses std::exchange without it

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace plumb {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using ErrorCode = boost::system::error_code;
using Parser = http::response_parser<http::string_body>;
using PlainJson = nlohmann::json;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::string head_of(const char* method, const Address& a, const std::string& path, const std::string& key,
                    size_t body_bytes) {
  std::string head = std::string(method) + " " + a.base_path + path + " HTTP/1.1\r\nHost: " + a.host + "\r\n";
  if (!key.empty()) head += "Authorization: Bearer " + key + "\r\n";
  if (body_bytes > 0)
    head += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body_bytes) + "\r\n";
  return head + "\r\n";
}

class Load {
 public:
  Load(const Address& address, const std::string& key, const std::vector<BenchRequest>& requests, const LoadPlan& plan)
      : address_(address), key_(key), requests_(requests), plan_(plan), results_(requests.size()), freed_(io_) {}

  std::vector<LoadResult> run() {
    Tcp::resolver resolver(io_);
    ErrorCode error;
    endpoints_ = resolver.resolve(address_.host, address_.port, error);
    if (error) {
      for (LoadResult& result : results_) result.error = address_.host + ": " + error.message();
      return std::move(results_);
    }
    started_ = Clock::now();
    if (plan_.timed) {
      asio::co_spawn(io_, send_at_their_times(), asio::detached);
    } else {
      const size_t workers = std::min<size_t>(requests_.size(), static_cast<size_t>(std::max(1, plan_.concurrency)));
      for (size_t i = 0; i < workers; ++i) asio::co_spawn(io_, send_in_turn(), asio::detached);
    }
    io_.run();
    return std::move(results_);
  }

 private:
  asio::awaitable<void> send_in_turn() {
    std::optional<Tcp::socket> socket;
    while (next_ < requests_.size()) co_await send(next_++, socket);
  }
  asio::awaitable<void> send_at_their_times() {
    asio::steady_timer timer(io_);
    ErrorCode ignored;
    for (size_t i = 0; i < requests_.size(); ++i) {
      timer.expires_at(started_ +
                       std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(requests_[i].at_s)));
      co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      while (plan_.concurrency > 0 && running_ >= plan_.concurrency) {
        freed_.expires_at(Clock::time_point::max());
        co_await freed_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      }
      ++running_;
      asio::co_spawn(io_, send_alone(i), asio::detached);
    }
  }
  asio::awaitable<void> send_alone(size_t index) {
    std::optional<Tcp::socket> socket;
    co_await send(index, socket);
    --running_;
    freed_.cancel();
  }

  // Uses the socket if it is open, and leaves it open for the next when the server does.
  asio::awaitable<void> send(size_t index, std::optional<Tcp::socket>& socket) {
    LoadResult& result = results_[index];
    const BenchRequest& request = requests_[index];
    const Clock::time_point begin = Clock::now();
    result.sent_s = seconds(begin - started_);
    ErrorCode error;
    if (!socket) {
      socket.emplace(io_);
      co_await asio::async_connect(*socket, endpoints_, asio::redirect_error(asio::use_awaitable, error));
      if (!error) socket->set_option(Tcp::no_delay(true), error);
    }
    const std::string text = head_of("POST", address_, request.path, key_, request.body.size()) + request.body;
    if (!error)
      co_await asio::async_write(*socket, asio::buffer(text), asio::redirect_error(asio::use_awaitable, error));
    bool keep_alive = false;
    if (!error) keep_alive = co_await read(*socket, begin, result, error);
    result.total_s = seconds(Clock::now() - begin);
    if (error && result.error.empty()) result.error = error.message();
    if (error || !keep_alive) socket.reset();
  }

  // Whether the connection can be used again.
  asio::awaitable<bool> read(Tcp::socket& socket, Clock::time_point begin, LoadResult& result, ErrorCode& error) {
    boost::beast::flat_buffer buffer;
    Parser parser;
    parser.body_limit(std::numeric_limits<std::uint64_t>::max());
    size_t read_to = 0;
    Clock::time_point last = begin;
    while (!parser.is_done()) {
      co_await http::async_read_some(socket, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return false;
      if (!parser.is_header_done() || parser.get()[http::field::content_type].find("event-stream") == std::string::npos)
        continue;
      read_to = take_events(parser.get().body(), read_to, begin, last, result);
    }
    const std::string& body = parser.get().body();
    if (parser.get().result_int() != 200) {
      result.error = "HTTP " + std::to_string(parser.get().result_int()) + ": " + body.substr(0, 300);
    } else if (read_to == 0) {
      take_answer(PlainJson::parse(body, nullptr, /*allow_exceptions=*/false), result);
      result.completion_tokens = std::max(result.completion_tokens, 1);
    } else if (result.first_s == 0 && !result.ended && result.error.empty()) {
      result.error = "the stream brought neither a token nor an end";
    }
    co_return parser.get().keep_alive();
  }

  // Where the first incomplete event begins. Events that arrive together share their time.
  static size_t take_events(const std::string& body, size_t from, Clock::time_point begin, Clock::time_point& last,
                            LoadResult& result) {
    const Clock::time_point now = Clock::now();
    for (size_t end = 0; (end = body.find("\n\n", from)) != std::string::npos; from = end + 2) {
      std::string_view event(body.data() + from, end - from);
      if (!event.starts_with("data:")) continue;
      event.remove_prefix(event.starts_with("data: ") ? 6 : 5);
      if (event == "[DONE]") continue;
      const PlainJson json = PlainJson::parse(event, nullptr, /*allow_exceptions=*/false);
      if (json.is_discarded() || !json.is_object()) continue;
      if (json.contains("error")) result.error = json["error"].dump().substr(0, 300);
      result.ended = result.ended || says_why_it_ended(json);
      if (brings_token(json)) {
        if (result.first_s == 0) {
          result.first_s = seconds(now - begin);
        } else {
          result.gaps_s.push_back(seconds(now - last));
        }
        last = now;
        if (!result.counted_by_server) ++result.completion_tokens;
      }
      take_answer(json, result);
    }
    return from;
  }

  static bool has_choice(const PlainJson& json) {
    return json.contains("choices") && json["choices"].is_array() && !json["choices"].empty();
  }
  static bool says_why_it_ended(const PlainJson& json) {
    return has_choice(json) && json["choices"][0].contains("finish_reason") &&
           json["choices"][0]["finish_reason"].is_string();
  }
  static bool brings_token(const PlainJson& json) {
    if (!has_choice(json)) return false;
    const PlainJson& choice = json["choices"][0];
    const PlainJson& holder = choice.contains("delta") ? choice["delta"] : choice;
    for (const char* field : {"text", "content", "reasoning_content", "reasoning"})
      if (holder.contains(field) && holder[field].is_string() && !holder[field].get_ref<const std::string&>().empty())
        return true;
    return false;
  }

  static void take_answer(const PlainJson& json, LoadResult& result) {
    if (!json.is_object()) return;
    if (json.contains("system_fingerprint") && json["system_fingerprint"].is_string())
      result.fingerprint = json["system_fingerprint"];
    if (!json.contains("usage") || !json["usage"].is_object()) return;
    result.prompt_tokens = json["usage"].value("prompt_tokens", 0);
    result.completion_tokens = json["usage"].value("completion_tokens", 0);
    result.counted_by_server = true;
  }

  const Address& address_;
  const std::string& key_;
  const std::vector<BenchRequest>& requests_;
  const LoadPlan plan_;
  std::vector<LoadResult> results_;
  asio::io_context io_{1};
  Tcp::resolver::results_type endpoints_{};
  asio::steady_timer freed_;  // cancelled when a request has ended
  Clock::time_point started_{};
  size_t next_ = 0;
  int running_ = 0;
};

}  // namespace

Result<Address> parse_url(const std::string& url) {
  static constexpr std::string_view kScheme = "http://";
  const Error bad{Code::Usage, "--url " + url, "it is not http://HOST[:PORT][/PATH]", {"http://127.0.0.1:8000"}};
  if (!url.starts_with(kScheme)) return bad;
  const std::string rest = url.substr(kScheme.size());
  const size_t slash = rest.find('/');
  Address address{.host = rest.substr(0, slash), .port = "80"};
  if (slash != std::string::npos) address.base_path = rest.substr(slash);
  while (address.base_path.ends_with('/')) address.base_path.pop_back();
  if (address.base_path.ends_with("/v1")) address.base_path.resize(address.base_path.size() - 3);
  const size_t bracket = address.host.rfind(']'), colon = address.host.rfind(':');
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    address.port = address.host.substr(colon + 1);
    address.host.resize(colon);
  }
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  if (address.host.empty() || address.port.empty()) return bad;
  return address;
}

Result<std::string> fetch(const Address& address, const std::string& path, const std::string& api_key) {
  asio::io_context io;
  Tcp::socket socket(io);
  ErrorCode error;
  const auto fail = [&] {
    return Error{Code::Environment, "cannot reach " + address.host + ":" + address.port, error.message(), {}};
  };
  const auto endpoints = Tcp::resolver(io).resolve(address.host, address.port, error);
  if (!error) asio::connect(socket, endpoints, error);
  if (error) return fail();
  asio::write(socket, asio::buffer(head_of("GET", address, path, api_key, 0)), error);
  boost::beast::flat_buffer buffer;
  Parser parser;
  parser.body_limit(std::numeric_limits<std::uint64_t>::max());
  if (!error) http::read(socket, buffer, parser, error);
  if (error) return fail();
  if (parser.get().result_int() != 200)
    return Error{
        Code::Environment, path + " was answered with HTTP " + std::to_string(parser.get().result_int()), "", {}};
  return parser.get().body();
}

std::vector<LoadResult> send_load(const Address& address, const std::string& api_key,
                                  const std::vector<BenchRequest>& requests, const LoadPlan& plan) {
  return Load(address, api_key, requests, plan).run();
}

}  // namespace plumb
