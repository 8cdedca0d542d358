// Ranks joined by a stream socket between every two of them: socket pairs inside one machine or process, TCP between
// machines. A process that ends closes its sockets, so the others know at once; one that hangs misses the deadline.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace plumb {

// Owns a file descriptor.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

class SocketCommunicator final : public Communicator {
 public:
  // links[p] leads to rank p; the one at `rank` is empty. `kind` names the transport.
  SocketCommunicator(int rank, std::vector<Socket> links, std::string kind = "sockets");
  // Says goodbye, so that ranks that are not done yet can tell it from an accident.
  ~SocketCommunicator() override;
  std::string transport() const override { return kind_; }
  bool others_here() const override;

 private:
  enum class Frame : uint32_t { Data = 1, Failure = 2, Goodbye = 3 };
  struct Header {
    uint32_t magic = 0x6b6c7072;  // "rplk"
    Frame frame = Frame::Data;
    uint64_t sequence = 0, bytes = 0;
  };
  // One direction of a link in the exchange under way: header, then data.
  struct Way {
    Header header{};
    size_t done = 0, total = 0;  // bytes, the header's among them
    bool pending() const { return done < total; }
  };
  struct Link {
    Socket socket{};
    Way out{}, in{};
    Out out_data{};
    In in_data{};
    bool seen_ahead = false;  // the next exchange's data is waiting: nothing more to learn from it now
  };

  Status do_exchange(std::span<const Out> out, std::span<const In> in) override;
  void tell_failure(const std::string& text) override;
  Status do_look() override;
  void tell_all(Frame frame, const std::string& text);
  void begin(std::span<const Out> out, std::span<const In> in);
  Result<bool> progress();  // true: all is done
  Status send_some(int rank, Link& link);
  Status receive_some(int rank, Link& link);
  Status check_header(int rank, Link& link);
  Status check_words(int rank, const Header& header) const;
  Status look_ahead(int rank, Link& link);
  Error lost(int rank, Link& link, const std::string& how);
  Error failure_of(int rank, const Link& link, uint64_t bytes);
  Error overdue() const;

  std::string kind_;
  std::vector<Link> links_;
  uint64_t sequence_ = 0;
};

// Sockets between every two of `ranks` ranks of one machine: result[r] are rank r's links.
Result<std::vector<std::vector<Socket>>> socket_mesh(int ranks);

}  // namespace plumb
