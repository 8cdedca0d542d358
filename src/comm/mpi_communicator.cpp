#ifdef PLUMB_HAVE_MPI
#include "comm/mpi_communicator.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <climits>
#include <thread>

namespace plumb {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTags = 32767;        // every MPI has at least so many
constexpr int kYieldsAtFirst = 64;  // a peer on another core answers within these; then sleep, cores may be shared

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(int rank, int size) : Communicator(rank, size) {}
  // After a failure the others may never come to MPI_Finalize: the process ends without it, and mpirun ends the rest.
  ~MpiCommunicator() override {
    if (!failure()) MPI_Finalize();
  }
  std::string transport() const override {
    int version = 0, minor = 0;
    MPI_Get_version(&version, &minor);
    return "MPI " + std::to_string(version) + "." + std::to_string(minor);
  }

 private:
  struct Pending {
    MPI_Request request = MPI_REQUEST_NULL;
    int peer = 0;
    bool receives = false;
  };
  Status do_exchange(std::span<const Out> out, std::span<const In> in) override;
  Status post(std::span<const Out> out, std::span<const In> in);
  Result<bool> all_done();
  Error overdue() const;
  Error mpi_error(int code, int peer) const;

  std::vector<Pending> pending_{};
  uint64_t sequence_ = 0;
};

Error MpiCommunicator::mpi_error(int code, int peer) const {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {Code::Peer, "no exchange with " + name_of(peer), text, {}};
}

Status MpiCommunicator::post(std::span<const Out> out, std::span<const In> in) {
  pending_.clear();
  const int tag = static_cast<int>(++sequence_ % kTags);
  for (int p = 0; p < size(); ++p) {
    const In to = in[static_cast<size_t>(p)];
    const Out from = out[static_cast<size_t>(p)];
    if (p == rank()) continue;
    if (to.size() > INT_MAX || from.size() > INT_MAX)
      return Error{Code::Internal, "a message of more than 2 GiB", "MPI counts in int", {}};
    if (!to.empty()) {
      Pending& one = pending_.emplace_back(Pending{.peer = p, .receives = true});
      const int code =
          MPI_Irecv(to.data(), static_cast<int>(to.size()), MPI_BYTE, p, tag, MPI_COMM_WORLD, &one.request);
      if (code != MPI_SUCCESS) return mpi_error(code, p);
    }
    if (!from.empty()) {
      Pending& one = pending_.emplace_back(Pending{.peer = p});
      const int code =
          MPI_Isend(from.data(), static_cast<int>(from.size()), MPI_BYTE, p, tag, MPI_COMM_WORLD, &one.request);
      if (code != MPI_SUCCESS) return mpi_error(code, p);
    }
  }
  return Ok{};
}

Result<bool> MpiCommunicator::all_done() {
  bool done = true;
  for (Pending& one : pending_) {
    int finished = 0;
    const int code = MPI_Test(&one.request, &finished, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return mpi_error(code, one.peer);
    done &= finished != 0;
  }
  return done;
}

Error MpiCommunicator::overdue() const {
  std::vector<int> silent;
  for (const bool receives : {true, false}) {
    for (const Pending& one : pending_)
      if (one.request != MPI_REQUEST_NULL && one.receives == receives) silent.push_back(one.peer);
    if (!silent.empty()) break;
  }
  return missing(silent, "no answer within " + std::to_string(deadline().count()) + " ms");
}

Status MpiCommunicator::do_exchange(std::span<const Out> out, std::span<const In> in) {
  PLUMB_TRY_STATUS(post(out, in));
  const Clock::time_point started = Clock::now();
  for (int turn = 0;; ++turn) {
    PLUMB_TRY(const bool done, all_done());
    if (done) return Ok{};
    if (deadline().count() > 0 && Clock::now() - started > deadline()) return overdue();
    if (turn < kYieldsAtFirst)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(20 + turn / 8, 1000)));
  }
}

}  // namespace

Status mpi_available() { return Ok{}; }

Result<std::unique_ptr<Communicator>> open_mpi() {
  int provided = 0;
  // Serialized: one thread at a time calls, though not always the one that began.
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS ||
      provided < MPI_THREAD_SERIALIZED)
    return Error{Code::Environment, "MPI does not start", "it must allow calls from one thread after another", {}};
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return std::unique_ptr<Communicator>(std::make_unique<MpiCommunicator>(rank, size));
}

}  // namespace plumb
#endif
