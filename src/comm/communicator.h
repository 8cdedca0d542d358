// Communicator: the ranks that share one model, as each of them sees the others. One primitive, exchange(), which every
// transport implements; collectives.h builds the rest on it, so that sums are the same bits whatever carries them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"

namespace plumb {

// What kernels of a device have between the ranks beside exchange(): memory that others write, or the communicator of a
// library. Their waits end in time too.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  // Why its kernels have given up; they do nothing from there on. For the thread that runs steps.
  virtual std::optional<Error> failure() const = 0;
  // Of a kernel's wait for the others; 0: none.
  virtual void set_deadline(std::chrono::milliseconds deadline) = 0;
  // On a thread of the communicator's, many times a second. `lost`: another rank has ended, and is waited for in vain.
  virtual void look_after(bool lost) = 0;
};

class Communicator {
 public:
  using Out = std::span<const std::byte>;
  using In = std::span<std::byte>;
  using Milliseconds = std::chrono::milliseconds;

  Communicator(int rank, int size) : rank_(rank), size_(size), names_(static_cast<size_t>(size)) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string transport() const = 0;  // "sockets", "MPI ...": for the plan

  // Sends out[p] to each rank p and receives in[p] from it; empty ones are not sent, and the two ends agree on sizes.
  // Every rank makes the same sequence of exchanges. Done when all of it is here, or an Error (Peer) that names the
  // ranks that are missing. The first failure is the last exchange: later ones fail at once, with the same error.
  // One caller at a time.
  Status exchange(std::span<const Out> out, std::span<const In> in);

  // For the exchanges from here on; 0: they wait as long as the others live.
  void set_deadline(Milliseconds deadline);
  Milliseconds deadline() const { return deadline_; }

  const std::optional<Error>& failure() const { return failure_; }  // for the caller of exchange()
  bool failed() const { return failed_; }                           // for any thread
  const std::atomic<bool>& failed_flag() const { return failed_; }
  // Fails from here on, and tells the others why, as far as they can still be reached.
  void fail(Error error);
  // Fails if a device link has; with what the transport knows of the cause. For the caller of exchange().
  void look();
  bool links_failed() const;
  // False once another rank has been seen to end or to fail, where the transport can see that. For any thread.
  virtual bool others_here() const { return true; }

  // "rank 2 (host b, process 71)", once the ranks have introduced themselves; else "rank 2".
  std::string name_of(int rank) const;
  void set_name(int rank, std::string name) { names_[static_cast<size_t>(rank)] = std::move(name); }

  // Memory of the communicator's own, for what collectives receive; grows to the largest ever asked for.
  In scratch(size_t bytes);

  // For kernels of a device: page-locked memory of the host that what they exchange passes through, and what must live
  // as long as the steps recorded for it. Nobody else touches either.
  void set_staging(std::shared_ptr<std::byte> memory, size_t bytes) {
    staging_ = std::move(memory);
    staging_bytes_ = bytes;
  }
  In staging() const { return {staging_.get(), staging_bytes_}; }
  void keep(std::shared_ptr<void> object) { kept_.push_back(std::move(object)); }

  // Links live until detach_links(): after what was recorded with them, before their device and this communicator.
  void attach(std::unique_ptr<DeviceLink> link);
  void detach_links();
  template <class Link>
  Link* attached() const {
    for (const auto& link : links_)
      if (auto* const found = dynamic_cast<Link*>(link.get())) return found;
    return nullptr;
  }
  // "did not answer within 4000 ms: rank 1, rank 3".
  Error missing(std::span<const int> ranks, const std::string& what) const;

  uint64_t exchanges() const { return exchanges_; }
  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t waited_ns() const { return waited_ns_; }  // inside exchange()

 protected:
  virtual Status do_exchange(std::span<const Out> out, std::span<const In> in) = 0;
  virtual void tell_failure(const std::string& text) { static_cast<void>(text); }
  // Between exchanges: what is wrong with the others, as far as they have said so.
  virtual Status do_look() { return Ok{}; }

 private:
  const int rank_, size_;
  Milliseconds deadline_{0};
  std::optional<Error> failure_{};
  std::atomic<bool> failed_{false};
  std::vector<std::string> names_;
  std::vector<std::byte> scratch_{};
  std::shared_ptr<std::byte> staging_{};
  size_t staging_bytes_ = 0;
  std::vector<std::shared_ptr<void>> kept_{};
  std::vector<std::unique_ptr<DeviceLink>> links_{};
  std::jthread link_watch_{};
  uint64_t exchanges_ = 0, bytes_sent_ = 0, waited_ns_ = 0;
};

}  // namespace plumb
