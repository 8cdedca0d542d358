// What to do about an engine that makes no progress: say so once, then give the process up.
#pragma once

#include <chrono>
#include <utility>

namespace plumb {

class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Action { None, Report, Recovered, Exit };

  // `exit_ms`: how long after the report it still waits; 0: for ever.
  explicit Watchdog(int exit_ms) : exit_after_(exit_ms) {}

  Action look(bool alive, Clock::time_point now) {
    if (alive) return std::exchange(stuck_, false) ? Action::Recovered : Action::None;
    if (!std::exchange(stuck_, true)) {
      since_ = now;
      return Action::Report;
    }
    const bool over = exit_after_.count() > 0 && now - since_ >= exit_after_;
    return over ? Action::Exit : Action::None;
  }

 private:
  std::chrono::milliseconds exit_after_;
  bool stuck_ = false;
  Clock::time_point since_{};  // valid while stuck_
};

}  // namespace plumb
