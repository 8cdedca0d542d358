// The guard of a running engine: sentinels on every op, captures of what they find, and the shadow. Owned and called by
// the engine thread; what the shadow finds later is taken from it there too.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "guard/capture.h"
#include "guard/guard_stats.h"
#include "guard/incident.h"
#include "guard/sentinels.h"
#include "guard/shadow.h"
#include "guard/stream_sentinels.h"

namespace plumb {

struct GuardOptions {
  bool sentinels = true;
  double shadow_rate = 0;              // fraction of steps; 0: off
  const Registry* registry = nullptr;  // for the shadow; must outlive the engine
  int rank = 0;
  bool log = true;  // each incident in the log; a start's checks say in their receipt what they found
  CaptureLimits captures{};
  CaptureOrigin origin{};
};

// Whose row it is.
struct RowOwner {
  uint64_t sequence = 0;  // the engine's number of the request
  std::string request_id{};
  int position = -1;
  std::span<const int32_t> tokens{};  // up to the row's own; read while it is passed on
};

class Guard {
 public:
  // Watches `executor` as long as it lives. Passes have at most `max_rows` rows; `report`: the whole of what
  // StepOutput::report is a part of.
  Guard(Executor& executor, const GuardOptions& options, int max_rows, const Tensor& report);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // owner(row): asked now, for the rows that are shadowed.
  void begin_step(uint64_t step, int rows, const std::function<RowOwner(int row)>& owner);
  // The report of a pass, in host memory: what a device's sentinels have marked. True: rows of the step's main pass are
  // bad; it is to be run again under the eyes of watch_again, which finds out what exactly was written where.
  bool note(const Tensor& report);
  bool watches_stream() const { return in_stream_.has_value(); }
  void watch_again(const std::function<void()>& pass);
  // First fault of a row of the step's main pass; nullptr: clean.
  const RowFault* fault(int row) const;
  // All of the step so far, those of draft passes included.
  std::span<const RowFault> faults() const { return sentinels_.faults(); }
  // A fault becomes an incident: named, logged, counted, captured if there is room.
  Incident report(const RowFault& fault, const RowOwner& owner);

  struct Late {
    uint64_t sequence = 0;
    Incident incident{};
  };
  // What the shadow has found since the last call.
  std::vector<Late> take_late();
  GuardStats stats() const;
  // Waits for the shadow and gives what it found (verification and tests).
  void settle();

 private:
  Incident name(uint64_t step, int row, SiteId site, const Kernel& kernel) const;
  void found_late(uint64_t step, OpRecord& record, const Judgement& judgement);
  void log(const Incident& incident) const;

  Executor& executor_;
  const GuardOptions options_;
  Sentinels sentinels_;
  std::optional<StreamSentinels> in_stream_{};  // on a device
  uint64_t step_ = 0;
  CaptureStore captures_;
  std::atomic<uint64_t> nan_rows_{0}, inf_rows_{0}, drift_rows_{0};
  mutable std::mutex mutex_{};
  struct Owned {
    uint64_t step = 0;
    int64_t first = 0;                                  // row
    std::vector<RowOwner> owners{};                     // of rows from `first` on
    std::map<uint64_t, std::vector<int32_t>> tokens{};  // by sequence, if captures have them
    std::set<uint64_t> told{};                          // sequences: their first finding is closest to the cause
  };
  std::deque<Owned> shadowed_{};  // steps whose records may still be judged
  std::vector<Late> late_{};
  std::atomic<bool> any_late_{false};
  std::unique_ptr<Shadow> shadow_{};  // last: ends first
};

}  // namespace plumb
