// Says when a step counts as stuck: after many times what steps of its size have taken so far, and never before the
// floor. So a prompt of a hundred thousand tokens has its time, and a step of one row that hangs is seen in seconds.
// The engine thread calls begin() and end(), any thread the rest.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace plumb {

class StepClock {
 public:
  // `floor_us`: no step counts as stuck earlier. `first_us`: allowed while nothing has been measured.
  StepClock(int64_t floor_us, int64_t first_us) : floor_us_(floor_us), first_us_(first_us) {}

  // A row's work grows with the tokens before it.
  static double work_of_row(int64_t position) { return 1.0 + static_cast<double>(position) / 4096.0; }

  void begin(int64_t now_us, double work) {
    work_ = work;
    begun_us_ = now_us;
    // Far beyond what has been seen, all of a step's time is taken to grow with its work, which errs on the long side.
    const double predicted = work <= 2 * largest_work_ ? base_us_ + us_per_work_ * work : whole_us_per_work_ * work;
    const int64_t allowed = largest_work_ > 0 ? static_cast<int64_t>(kFactor * predicted) : first_us_;
    due_us_.store(now_us + std::max(floor_us_, allowed), std::memory_order_relaxed);
  }
  void end(int64_t now_us) {
    const double took = static_cast<double>(now_us - begun_us_);
    // The slowest seen, forgotten slowly: an average bounds nothing.
    base_us_ = largest_work_ == 0 || took < base_us_ ? took : base_us_ * 1.001;
    us_per_work_ = std::max(us_per_work_ * 0.999, (took - base_us_) / work_);
    whole_us_per_work_ = std::max(whole_us_per_work_ * 0.999, took / work_);
    largest_work_ = std::max(largest_work_, work_);
    due_us_.store(0, std::memory_order_relaxed);
  }
  bool overdue(int64_t now_us) const {
    const int64_t due = due_us_.load(std::memory_order_relaxed);
    return due != 0 && now_us > due;
  }

 private:
  static constexpr double kFactor = 20;
  const int64_t floor_us_, first_us_;
  double base_us_ = 0, us_per_work_ = 0, whole_us_per_work_ = 0;
  double work_ = 1, largest_work_ = 0;
  int64_t begun_us_ = 0;
  std::atomic<int64_t> due_us_{0};  // 0: no step runs
};

}  // namespace plumb
