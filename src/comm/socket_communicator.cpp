#include "comm/socket_communicator.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace plumb {
namespace {

using Clock = std::chrono::steady_clock;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// Before the text of a failure: is it a check that failed?
char code_of(Code code) { return code == Code::Verification ? 'v' : 'p'; }

// What is left of header and data after `done` bytes of both, as at most two pieces.
int pieces(void* header, size_t header_bytes, void* data, size_t data_bytes, size_t done, std::array<iovec, 2>& out) {
  int count = 0;
  if (done < header_bytes) out[static_cast<size_t>(count++)] = {static_cast<char*>(header) + done, header_bytes - done};
  const size_t begun = done > header_bytes ? done - header_bytes : 0;
  if (begun < data_bytes) out[static_cast<size_t>(count++)] = {static_cast<char*>(data) + begun, data_bytes - begun};
  return count;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) close(fd_);
  fd_ = other.release();
  return *this;
}

SocketCommunicator::SocketCommunicator(int rank, std::vector<Socket> links, std::string kind)
    : Communicator(rank, static_cast<int>(links.size())), kind_(std::move(kind)), links_(links.size()) {
  for (size_t p = 0; p < links.size(); ++p) links_[p].socket = std::move(links[p]);
}

SocketCommunicator::~SocketCommunicator() {
  if (!failure()) tell_all(Frame::Goodbye, {});
}

void SocketCommunicator::begin(std::span<const Out> out, std::span<const In> in) {
  ++sequence_;
  for (size_t p = 0; p < links_.size(); ++p) {
    Link& link = links_[p];
    if (!link.socket) continue;
    link.out_data = out[p];
    link.in_data = in[p];
    link.out = {.header = {.sequence = sequence_, .bytes = out[p].size()},
                .total = out[p].empty() ? 0 : sizeof(Header) + out[p].size()};
    link.in = {.total = in[p].empty() ? 0 : sizeof(Header) + in[p].size()};
    link.seen_ahead = false;
  }
}

Status SocketCommunicator::do_exchange(std::span<const Out> out, std::span<const In> in) {
  begin(out, in);
  const Clock::time_point started = Clock::now();
  std::vector<pollfd> waiting;
  while (true) {
    PLUMB_TRY(const bool done, progress());
    if (done) return Ok{};
    int timeout = -1;
    if (deadline().count() > 0) {
      const auto left = std::chrono::duration_cast<Milliseconds>(started + deadline() - Clock::now());
      if (left.count() <= 0) return overdue();
      timeout = static_cast<int>(std::min<int64_t>(left.count() + 1, 60'000));
    }
    waiting.clear();
    for (const Link& link : links_) {
      if (!link.socket) continue;
      const bool listen = link.in.pending() || !link.seen_ahead;
      const int events = (link.out.pending() ? POLLOUT : 0) | (listen ? POLLIN : 0);
      if (events != 0)
        waiting.push_back({.fd = link.socket.fd(), .events = static_cast<int16_t>(events), .revents = 0});
    }
    poll(waiting.data(), waiting.size(), timeout);
  }
}

Result<bool> SocketCommunicator::progress() {
  bool done = true;
  for (size_t p = 0; p < links_.size(); ++p) {
    Link& link = links_[p];
    if (!link.socket) continue;
    const int rank = static_cast<int>(p);
    if (link.out.pending()) PLUMB_TRY_STATUS(send_some(rank, link));
    if (link.in.pending()) PLUMB_TRY_STATUS(receive_some(rank, link));
    done &= !link.out.pending() && !link.in.pending();
  }
  if (done) return true;
  // A rank that has ended, or failed, is worth knowing of also while others are waited for.
  for (size_t p = 0; p < links_.size(); ++p) {
    Link& link = links_[p];
    if (link.socket && !link.in.pending() && !link.seen_ahead) PLUMB_TRY_STATUS(look_ahead(static_cast<int>(p), link));
  }
  return false;
}

Status SocketCommunicator::send_some(int rank, Link& link) {
  std::array<iovec, 2> parts{};
  const int count = pieces(&link.out.header, sizeof(Header), const_cast<std::byte*>(link.out_data.data()),
                           link.out_data.size(), link.out.done, parts);
  const msghdr message{.msg_name = nullptr,
                       .msg_namelen = 0,
                       .msg_iov = parts.data(),
                       .msg_iovlen = static_cast<size_t>(count),
                       .msg_control = nullptr,
                       .msg_controllen = 0,
                       .msg_flags = 0};
  const ssize_t sent = sendmsg(link.socket.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) link.out.done += static_cast<size_t>(sent);
  if (sent < 0 && !would_block(errno)) return lost(rank, link, std::strerror(errno));
  return Ok{};
}

Status SocketCommunicator::receive_some(int rank, Link& link) {
  while (link.in.pending()) {
    const bool in_header = link.in.done < sizeof(Header);
    char* const to = in_header ? reinterpret_cast<char*>(&link.in.header) + link.in.done
                               : reinterpret_cast<char*>(link.in_data.data()) + (link.in.done - sizeof(Header));
    const size_t wanted = (in_header ? sizeof(Header) : link.in.total) - link.in.done;
    const ssize_t got = recv(link.socket.fd(), to, wanted, MSG_DONTWAIT);
    if (got < 0 && would_block(errno)) return Ok{};
    if (got <= 0) return lost(rank, link, got == 0 ? "its connection is closed" : std::strerror(errno));
    link.in.done += static_cast<size_t>(got);
    if (in_header && link.in.done == sizeof(Header)) PLUMB_TRY_STATUS(check_header(rank, link));
  }
  return Ok{};
}

Status SocketCommunicator::check_words(int rank, const Header& header) const {
  if (header.magic != Header{}.magic)
    return Error{Code::Peer, name_of(rank) + " sends something that is no message of a rank", "", {}};
  if (header.frame == Frame::Goodbye) return Error{Code::Peer, name_of(rank) + " has ended", "", {}};
  return Ok{};
}

Status SocketCommunicator::check_header(int rank, Link& link) {
  const Header& header = link.in.header;
  if (header.frame == Frame::Failure) return failure_of(rank, link, header.bytes);
  PLUMB_TRY_STATUS(check_words(rank, header));
  if (header.sequence != sequence_ || header.bytes != link.in_data.size())
    return Error{Code::Internal,
                 name_of(rank) + " and " + name_of(this->rank()) + " are not in step",
                 "its exchange is number " + std::to_string(header.sequence) + ", of " + std::to_string(header.bytes) +
                     " bytes; here it is number " + std::to_string(sequence_) + ", of " +
                     std::to_string(link.in_data.size()),
                 {}};
  return Ok{};
}

// Looks without taking: an exchange may be under way on another thread. What is in the middle of one is no header.
bool SocketCommunicator::others_here() const {
  for (const Link& link : links_) {
    if (!link.socket) continue;
    pollfd ended{.fd = link.socket.fd(), .events = POLLRDHUP, .revents = 0};
    if (poll(&ended, 1, 0) > 0) return false;
    Header header{};
    const ssize_t got = recv(link.socket.fd(), &header, sizeof header, MSG_DONTWAIT | MSG_PEEK);
    if (got == ssize_t{sizeof header} && header.magic == Header{}.magic && header.frame == Frame::Failure) return false;
  }
  return true;
}

Status SocketCommunicator::do_look() {
  for (size_t p = 0; p < links_.size(); ++p) {
    Link& link = links_[p];
    link.in = {};
    if (!link.socket) continue;
    PLUMB_TRY_STATUS(look_ahead(static_cast<int>(p), link));
    Header header{};
    const ssize_t got = recv(link.socket.fd(), &header, sizeof header, MSG_DONTWAIT | MSG_PEEK);
    if (got == ssize_t{sizeof header}) PLUMB_TRY_STATUS(check_words(static_cast<int>(p), header));
  }
  return Ok{};
}

// The other end is not expected to send: is it there, and does it go on?
Status SocketCommunicator::look_ahead(int rank, Link& link) {
  Header header{};
  const ssize_t got = recv(link.socket.fd(), &header, sizeof header, MSG_DONTWAIT | MSG_PEEK);
  if (got < 0 && would_block(errno)) return Ok{};
  if (got <= 0) return lost(rank, link, got == 0 ? "its connection is closed" : std::strerror(errno));
  link.seen_ahead = true;
  if (static_cast<size_t>(got) < sizeof header || header.frame != Frame::Failure) return Ok{};
  recv(link.socket.fd(), &header, sizeof header, MSG_DONTWAIT);
  return failure_of(rank, link, header.bytes);
}

// Its last words, if it had time for some, say more than that it is gone.
Error SocketCommunicator::lost(int rank, Link& link, const std::string& how) {
  Header header{};
  if (link.in.done == 0 && recv(link.socket.fd(), &header, sizeof header, MSG_DONTWAIT) == ssize_t{sizeof header} &&
      header.frame == Frame::Failure)
    return failure_of(rank, link, header.bytes);
  return {Code::Peer, name_of(rank) + " is gone", how, {}};
}

// Only the leader takes the code over: it speaks for all, and the others end because of another rank.
Error SocketCommunicator::failure_of(int rank, const Link& link, uint64_t bytes) {
  std::string text(std::min<uint64_t>(bytes, 4096), '\0');
  const ssize_t got = recv(link.socket.fd(), text.data(), text.size(), MSG_DONTWAIT);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  if (text.size() < 2) return {Code::Peer, name_of(rank) + " has failed", "", {}};
  const bool verification = text[0] == code_of(Code::Verification);
  return {verification && this->rank() == 0 ? Code::Verification : Code::Peer, text.substr(1), "", {}};
}

Error SocketCommunicator::overdue() const {
  std::vector<int> silent;
  for (size_t p = 0; p < links_.size(); ++p)
    if (links_[p].in.pending()) silent.push_back(static_cast<int>(p));
  for (size_t p = 0; p < links_.size() && silent.empty(); ++p)  // those who take nothing, if all have sent
    if (links_[p].out.pending()) silent.push_back(static_cast<int>(p));
  return missing(silent, "no answer within " + std::to_string(deadline().count()) + " ms");
}

void SocketCommunicator::tell_failure(const std::string& text) {
  tell_all(Frame::Failure, code_of(failure()->code) + text);
}

void SocketCommunicator::tell_all(Frame frame, const std::string& text) {
  for (Link& link : links_) {
    if (!link.socket || (link.out.pending() && link.out.done > 0)) continue;  // no frame inside a frame
    Header header{.frame = frame, .sequence = sequence_, .bytes = text.size()};
    std::string message(reinterpret_cast<const char*>(&header), sizeof header);
    message += text;
    send(link.socket.fd(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

Result<std::vector<std::vector<Socket>>> socket_mesh(int ranks) {
  std::vector<std::vector<Socket>> mesh(static_cast<size_t>(ranks));
  for (std::vector<Socket>& links : mesh) links.resize(static_cast<size_t>(ranks));
  for (size_t a = 0; a < mesh.size(); ++a) {
    for (size_t b = a + 1; b < mesh.size(); ++b) {
      std::array<int, 2> pair{};
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0)
        return Error{Code::Environment, "no socket between two ranks", std::strerror(errno), {"ulimit -n"}};
      mesh[a][b] = Socket(pair[0]);
      mesh[b][a] = Socket(pair[1]);
    }
  }
  return mesh;
}

}  // namespace plumb
