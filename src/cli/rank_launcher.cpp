#include "cli/rank_launcher.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "base/log.h"
#include "cli/merged_log.h"

namespace plumb {
namespace {

using Clock = std::chrono::steady_clock;

// What ranks that are left get: followers, once rank 0 has ended; all, once one has ended before its time, to say why
// and to answer what rank 0 still serves.
constexpr std::chrono::seconds kAfterLeader{2}, kAfterLoss{4};

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status))
    return "was ended by signal " + std::to_string(WTERMSIG(status)) +
           (WTERMSIG(status) == SIGKILL ? " (the system kills so when memory is short: see dmesg)" : "");
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

class Supervisor {
 public:
  explicit Supervisor(std::vector<pid_t> ranks) : ranks_(std::move(ranks)) {}
  int run();

 private:
  void reap();
  void ended(size_t rank, int status);
  void kill_rest() const;
  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](pid_t pid) { return pid == 0; });
  }

  std::vector<pid_t> ranks_;  // 0: has ended
  int exit_code_ = 0;
  bool leader_ended_ = false, lost_ = false;
  std::optional<Clock::time_point> kill_at_{};
};

void Supervisor::ended(size_t rank, int status) {
  ranks_[rank] = 0;
  const int lost_a_rank = exit_code(Code::Peer);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : lost_a_rank;
  // Ranks that end because another is lost say so by their code, and may end first: a code that says more is the
  // cause's.
  if (exit_code_ == lost_a_rank && code != 0) exit_code_ = code;
  if (rank == 0) {
    leader_ended_ = true;
    if (!lost_) exit_code_ = code;
    if (WIFSIGNALED(status)) log_error("rank 0 " + how_it_ended(status));
  } else if (!leader_ended_ && !lost_ && code != 0) {
    // The first one that ends before its time is the cause; what follows are its consequences. One that ends because it
    // has lost another (a leader that was stopped, say) has said so itself.
    lost_ = true;
    exit_code_ = code;
    if (WIFSIGNALED(status) || code != lost_a_rank)
      log_error("rank " + std::to_string(rank) + " " + how_it_ended(status) + ": the other ranks end with it");
  }
  if (!kill_at_ && (leader_ended_ || lost_)) kill_at_ = Clock::now() + (leader_ended_ ? kAfterLeader : kAfterLoss);
}

void Supervisor::reap() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    int status = 0;
    if (ranks_[rank] != 0 && waitpid(ranks_[rank], &status, WNOHANG) == ranks_[rank]) ended(rank, status);
  }
}

void Supervisor::kill_rest() const {
  for (const pid_t pid : ranks_)
    if (pid != 0) kill(pid, SIGKILL);  // reaches a stopped process too
}

int Supervisor::run() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  while (true) {
    reap();
    if (all_ended()) return exit_code_;
    if (kill_at_ && Clock::now() >= *kill_at_) kill_rest();
    const timespec wait{.tv_sec = 0, .tv_nsec = 200'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &wait);
    if (signal > 0 && signal != SIGCHLD && ranks_[0] != 0) kill(ranks_[0], signal == SIGHUP ? SIGTERM : signal);
  }
}

// A rank ends with the process that started it; only rank 0 hears that it should stop. `log` is where the others write
// what rank 0 writes to standard error.
void become_rank(int rank, const sigset_t& mask, pid_t parent, int log) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(exit_code(Code::Peer));
  if (rank == 0) setpgid(0, 0);  // a terminal's ^C comes once, by way of the parent
  if (rank > 0) {
    dup2(log, STDERR_FILENO);
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
  }
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

Error cannot_start(int rank, const std::vector<pid_t>& started) {
  const std::string why = std::strerror(errno);
  for (const pid_t pid : started) kill(pid, SIGKILL);
  return {Code::Environment, "rank " + std::to_string(rank) + " cannot be started", why, {}};
}

}  // namespace

Result<Launched> launch_ranks(int ranks) {
  PLUMB_TRY(auto mesh, socket_mesh(ranks));
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  std::vector<int> logs;  // ends to read from
  for (int rank = 0; rank < ranks; ++rank) {
    std::array<int, 2> log{-1, -1};
    if (rank > 0 && pipe2(log.data(), O_CLOEXEC) != 0) return cannot_start(rank, children);
    const pid_t child = fork();
    if (child == 0) {
      become_rank(rank, before, parent, log[1]);
      for (const int end : logs) close(end);
      for (const int end : log) close(end);
      return Launched{.rank = rank, .links = std::move(mesh[static_cast<size_t>(rank)])};
    }
    if (child < 0) return cannot_start(rank, children);
    children.push_back(child);
    if (rank == 0) continue;
    logs.push_back(log[0]);
    close(log[1]);
  }
  mesh.clear();  // the ranks' alone: who ends is noticed by its peers
  std::thread merging([&logs] { merge_logs(logs, 1, STDERR_FILENO); });
  const int ended = Supervisor(std::move(children)).run();
  merging.join();
  return Launched{.ended = ended};
}

}  // namespace plumb
