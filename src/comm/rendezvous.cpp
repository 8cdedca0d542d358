#include "comm/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "comm/socket_communicator.h"

namespace plumb {
namespace {

using Clock = std::chrono::steady_clock;

// What a rank says of itself when it has connected, and where it listens for the ranks above it.
struct Hello {
  uint32_t magic = 0x6b6c7068;  // "hplk"
  int32_t rank = 0, size = 0;
  uint16_t port = 0;
};
// Where the ranks listen, as rank 0 sees them.
struct Place {
  sockaddr_storage address{};
  uint32_t length = 0;
};

Error system_error(const std::string& what) { return {Code::Environment, what, std::strerror(errno), {}}; }

class Meeting {
 public:
  Meeting(const RankEnv& env, std::chrono::milliseconds deadline)
      : env_(env),
        deadline_(deadline),
        end_(Clock::now() + deadline),
        links_(static_cast<size_t>(env.size)),
        places_(static_cast<size_t>(env.size)) {}
  Result<std::vector<Socket>> run();

 private:
  Status lead();
  Status follow();
  Status listen_at(int port);
  Status accept_ranks(int from);
  Status accept_one();
  Result<Socket> connect_to(const sockaddr* address, socklen_t length, const std::string& name);
  Result<Socket> find_leader();
  Status transfer(int fd, void* data, size_t bytes, bool sends) const;
  Error missing(int from) const;
  int left_ms() const {
    return static_cast<int>(
        std::max<int64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count(), 0));
  }

  const RankEnv& env_;
  const std::chrono::milliseconds deadline_;
  const Clock::time_point end_;
  Socket listener_{};
  uint16_t port_ = 0;
  std::vector<Socket> links_;
  std::vector<Place> places_;
};

// An IPv6 socket takes IPv4 as well; machines without IPv6 have the other kind alone.
Status Meeting::listen_at(int port) {
  for (const int family : {AF_INET6, AF_INET}) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket) continue;
    const int on = 1, off = 0;
    setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_storage address{};
    socklen_t length = 0;
    if (family == AF_INET6) {
      setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
      v6->sin6_family = AF_INET6;
      v6->sin6_port = htons(static_cast<uint16_t>(port));
      length = sizeof *v6;
    } else {
      auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
      v4->sin_family = AF_INET;
      v4->sin_port = htons(static_cast<uint16_t>(port));
      length = sizeof *v4;
    }
    if (bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
      if (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL) continue;
      return system_error("rank " + std::to_string(env_.rank) + " cannot listen on port " + std::to_string(port));
    }
    if (listen(socket.fd(), 128) != 0 || getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
      return system_error("rank " + std::to_string(env_.rank) + " cannot listen");
    port_ = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                     : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
    listener_ = std::move(socket);
    return Ok{};
  }
  return system_error("no socket to listen with");
}

Status Meeting::transfer(int fd, void* data, size_t bytes, bool sends) const {
  for (size_t done = 0; done < bytes;) {
    char* const at = static_cast<char*>(data) + done;
    const ssize_t moved =
        sends ? send(fd, at, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, bytes - done, MSG_DONTWAIT);
    if (moved > 0) done += static_cast<size_t>(moved);
    if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
      return Error{Code::Peer, "a rank went away while the ranks met", moved == 0 ? "" : std::strerror(errno), {}};
    if (moved > 0) continue;
    if (left_ms() == 0) return Error{Code::Peer, "a rank does not go on while the ranks meet", "", {}};
    pollfd one{.fd = fd, .events = static_cast<int16_t>(sends ? POLLOUT : POLLIN), .revents = 0};
    poll(&one, 1, left_ms());
  }
  return Ok{};
}

void prepare(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

Status Meeting::accept_one() {
  Place place{.length = sizeof(sockaddr_storage)};
  Socket socket(accept4(listener_.fd(), reinterpret_cast<sockaddr*>(&place.address), &place.length, SOCK_CLOEXEC));
  if (!socket) return Ok{};
  prepare(socket.fd());
  Hello hello;
  // Whoever says nothing sensible is no rank: a scanner, a health check. Ranks are waited for all the same.
  pollfd one{.fd = socket.fd(), .events = POLLIN, .revents = 0};
  poll(&one, 1, std::min(left_ms(), 2000));
  if (recv(socket.fd(), &hello, sizeof hello, MSG_DONTWAIT) != ssize_t{sizeof hello} || hello.magic != Hello{}.magic)
    return Ok{};
  if (hello.size != env_.size || hello.rank <= env_.rank || hello.rank >= env_.size)
    return Error{Code::Usage,
                 "rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.size) + " came to rank " +
                     std::to_string(env_.rank) + " of " + std::to_string(env_.size),
                 "the ranks were started with different numbers",
                 {}};
  Socket& link = links_[static_cast<size_t>(hello.rank)];
  if (link)
    return Error{Code::Usage,
                 "rank " + std::to_string(hello.rank) + " came twice",
                 "two processes were started with the same number",
                 {}};
  auto* const address = reinterpret_cast<sockaddr*>(&place.address);
  if (address->sa_family == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(hello.port);
  else
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(hello.port);
  places_[static_cast<size_t>(hello.rank)] = place;
  link = std::move(socket);
  return Ok{};
}

Error Meeting::missing(int from) const {
  std::string names;
  for (int rank = from; rank < env_.size; ++rank)
    if (!links_[static_cast<size_t>(rank)]) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  return {Code::Peer,
          "these ranks have not come within " + std::to_string(deadline_.count() / 1000) + " s: " + names + " of " +
              std::to_string(env_.size),
          "rank " + std::to_string(env_.rank) + " waits for them on port " + std::to_string(port_),
          {"a longer --rank-wait", "MASTER_ADDR and MASTER_PORT that all of them can reach"}};
}

Status Meeting::accept_ranks(int from) {
  const auto complete = [&] {
    return std::all_of(links_.begin() + from, links_.end(), [](const Socket& link) { return static_cast<bool>(link); });
  };
  while (!complete()) {
    pollfd one{.fd = listener_.fd(), .events = POLLIN, .revents = 0};
    if (left_ms() == 0) return missing(from);
    if (poll(&one, 1, left_ms()) > 0) PLUMB_TRY_STATUS(accept_one());
  }
  return Ok{};
}

Result<Socket> Meeting::connect_to(const sockaddr* address, socklen_t length, const std::string& name) {
  Socket socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return system_error("no socket");
  if (connect(socket.fd(), address, length) != 0) return system_error(name + " cannot be reached");
  prepare(socket.fd());
  Hello hello{.rank = env_.rank, .size = env_.size, .port = port_};
  PLUMB_TRY_STATUS(transfer(socket.fd(), &hello, sizeof hello, /*sends=*/true));
  return socket;
}

// Rank 0 may start later than this one, and its name may not resolve yet: tried until the deadline.
Result<Socket> Meeting::find_leader() {
  const std::string name = "rank 0 at " + env_.address + ":" + std::to_string(env_.port);
  std::string why = "it was not tried";
  while (left_ms() > 0) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int code = getaddrinfo(env_.address.c_str(), std::to_string(env_.port).c_str(), &hints, &list);
    if (code != 0) why = gai_strerror(code);
    for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
      Result<Socket> connected = connect_to(one->ai_addr, one->ai_addrlen, name);
      if (connected) {
        freeaddrinfo(list);
        return connected;
      }
      why = connected.error().why;
    }
    if (list != nullptr) freeaddrinfo(list);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return Error{Code::Peer,
               name + " has not been reached within " + std::to_string(deadline_.count() / 1000) + " s",
               why,
               {"a longer --rank-wait", "MASTER_ADDR and MASTER_PORT of rank 0's machine"}};
}

Status Meeting::lead() {
  PLUMB_TRY_STATUS(listen_at(env_.port));
  PLUMB_TRY_STATUS(accept_ranks(1));
  for (size_t p = 1; p < links_.size(); ++p)
    PLUMB_TRY_STATUS(transfer(links_[p].fd(), places_.data(), places_.size() * sizeof(Place), /*sends=*/true));
  return Ok{};
}

Status Meeting::follow() {
  PLUMB_TRY_STATUS(listen_at(0));
  PLUMB_TRY(links_[0], find_leader());
  std::vector<Place> places(places_.size());
  const Status told = transfer(links_[0].fd(), places.data(), places.size() * sizeof(Place), /*sends=*/false);
  if (!told)
    return Error{Code::Peer,
                 "rank 0 has not brought the ranks together",
                 told.error().what,
                 {"rank 0's own message says which ranks are missing"}};
  for (int p = 1; p < env_.rank; ++p) {
    const Place& place = places[static_cast<size_t>(p)];
    PLUMB_TRY(links_[static_cast<size_t>(p)],
              connect_to(reinterpret_cast<const sockaddr*>(&place.address), place.length, "rank " + std::to_string(p)));
  }
  return accept_ranks(env_.rank + 1);
}

Result<std::vector<Socket>> Meeting::run() {
  PLUMB_TRY_STATUS(env_.rank == 0 ? lead() : follow());
  return std::move(links_);
}

}  // namespace

Result<std::unique_ptr<Communicator>> meet(const RankEnv& env, std::chrono::milliseconds deadline) {
  PLUMB_TRY(std::vector<Socket> links, Meeting(env, deadline).run());
  return std::unique_ptr<Communicator>(std::make_unique<SocketCommunicator>(env.rank, std::move(links), "TCP"));
}

}  // namespace plumb
