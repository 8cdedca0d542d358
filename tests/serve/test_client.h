// A plain blocking HTTP client on a raw socket, so that tests see every byte.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plumb {

struct Answer {
  int status = 0;
  std::map<std::string, std::string> headers{};  // names in lower case
  std::string body{};                            // chunks joined
  std::string raw{};
  bool whole = false;  // the end was marked, not cut
};

class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ok_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  explicit Client(int connected_socket) : socket_(connected_socket), ok_(connected_socket >= 0) {}
  ~Client() { close(); }
  Client(Client&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), ok_(other.ok_), buffer_(std::move(other.buffer_)) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  Client& operator=(Client&&) = delete;

  bool ok() const { return ok_; }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  // Closes with a reset in place of an orderly end.
  void reset() {
    const linger hard{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // More bytes into the buffer; false at the end or after `milliseconds` without any.
  bool receive(int milliseconds = 10000) {
    pollfd wait{socket_, POLLIN, 0};
    if (::poll(&wait, 1, milliseconds) <= 0) return false;
    char bytes[65536];
    const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
    if (got <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(got));
    return true;
  }
  bool receive_until(std::string_view mark, int milliseconds = 10000) {
    while (buffer_.find(mark) == std::string::npos)
      if (!receive(milliseconds)) return false;
    return true;
  }
  std::string& buffer() { return buffer_; }

  // One answer, whole or cut; what follows stays in the buffer.
  Answer read_answer(bool to_head = false) {
    Answer answer;
    if (!receive_until("\r\n\r\n")) {
      answer.raw = buffer_;
      return answer;
    }
    const size_t head_size = buffer_.find("\r\n\r\n") + 4;
    parse_head(buffer_.substr(0, head_size), answer);
    answer.raw = buffer_.substr(0, head_size);
    buffer_.erase(0, head_size);
    if (answer.status == 100) return read_answer(to_head);
    if (to_head || answer.status == 204) {
      answer.whole = true;
    } else if (answer.headers.count("transfer-encoding") != 0) {
      read_chunks(answer);
    } else if (answer.headers.count("content-length") != 0) {
      const size_t size = std::strtoul(answer.headers["content-length"].c_str(), nullptr, 10);
      while (buffer_.size() < size && receive()) {
      }
      answer.whole = buffer_.size() >= size;
      answer.body = buffer_.substr(0, size);
      buffer_.erase(0, size);
    } else {
      while (receive()) {
      }
      answer.body.swap(buffer_);
      answer.whole = true;
    }
    answer.raw += answer.body;
    return answer;
  }

 private:
  static void parse_head(const std::string& head, Answer& answer) {
    answer.status = std::atoi(head.c_str() + 9);
    size_t at = head.find("\r\n") + 2;
    while (at < head.size() - 2) {
      const size_t end = head.find("\r\n", at);
      const size_t colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      answer.headers[name] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
  }
  void read_chunks(Answer& answer) {
    for (;;) {
      if (!receive_until("\r\n")) return;
      const size_t line = buffer_.find("\r\n");
      const size_t size = std::strtoul(buffer_.c_str(), nullptr, 16);
      while (buffer_.size() < line + 2 + size + 2)
        if (!receive()) return;
      answer.body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) {
        answer.whole = true;
        return;
      }
    }
  }

  int socket_ = -1;
  bool ok_ = false;
  std::string buffer_{};
};

inline std::string post_text(std::string_view path, std::string_view body, std::string_view headers = "") {
  std::string text = "POST " + std::string(path) + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n";
  text.append(headers).append("Content-Length: ").append(std::to_string(body.size())).append("\r\n\r\n").append(body);
  return text;
}
inline std::string get_text(std::string_view path, std::string_view headers = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n" + std::string(headers) + "\r\n";
}
inline Answer http_post(uint16_t port, std::string_view path, std::string_view body, std::string_view headers = "") {
  Client client(port);
  client.send(post_text(path, body, headers));
  return client.read_answer();
}
inline Answer http_get(uint16_t port, std::string_view path, std::string_view headers = "") {
  Client client(port);
  client.send(get_text(path, headers));
  return client.read_answer();
}

// The data of each SSE event, comments left out.
inline std::vector<std::string> sse_events(std::string_view body) {
  std::vector<std::string> events;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    const std::string_view event = body.substr(0, end);
    if (event.substr(0, 6) == "data: ") events.emplace_back(event.substr(6));
    if (end == std::string_view::npos) break;
    body.remove_prefix(end + 2);
  }
  return events;
}

}  // namespace plumb
