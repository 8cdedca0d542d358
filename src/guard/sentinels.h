// Sentinels: after each op, a look at what it wrote. The first value of a row that is not finite is remembered with the
// place that wrote it; what follows from it in the same row is not. A row is a row of the step, whatever the op calls
// it. On a device they watch steps that are run again because StreamSentinels found something.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "guard/incident.h"
#include "guard/op_record.h"

namespace plumb {

struct RowFault {
  int pass = 0;
  int32_t row = -1;       // of the pass
  int32_t sequence = -1;  // Paging's number of it
  int32_t position = -1;
  SiteId site = -1;
  const Kernel* kernel = nullptr;
  const char* tensor = "";
  int64_t column = -1;
  FaultKind kind = FaultKind::Nan;
  int record = -1;       // index into records(); -1: not recorded
  bool repeated = true;  // false: seen by StreamSentinels, and not when the step was run again
};

class Sentinels final : public OpObserver {
 public:
  // Passes of at most `max_rows` rows. With `keep_inputs` the first faults of a step are recorded, which costs a copy
  // of what ops change in place.
  Sentinels(int max_rows, bool keep_inputs);

  void begin_step();
  void begin_pass(const Paging& rows) override;
  void before(const OpCall& call, Executor& executor) override;
  void after(const OpCall& call, Executor& executor) override;

  int pass() const { return pass_; }  // of the step, the one under way
  // A row that StreamSentinels found bad at `site`, in a pass of `rows` rows. False: a padding row.
  bool add(int32_t row, SiteId site, const Plan& plan, int64_t rows);
  // The step once more under these eyes; what was found before and is not found again is kept. `run`: its first pass.
  void watch_again(Executor& executor, const std::function<void()>& run);

  // Of the step so far, in the order they were found.
  std::span<const RowFault> faults() const { return faults_; }
  std::span<OpRecord> records() { return records_; }
  // FP8 cache codes written, and those at the largest magnitude beyond the one that each group's scale is made from.
  // Any thread may ask.
  uint64_t cache_codes() const { return codes_; }
  uint64_t saturated_codes() const { return saturated_; }

  static constexpr int kMaxRecords = 4;  // a step

 private:
  int64_t columns_of(const OpCall& call, const Tensor& tensor, int64_t r) const;
  void look(const OpCall& call, Executor& executor, const char* name, const Tensor& tensor);
  void look_at_latent(const OpCall& call, Executor& executor);
  void look_at_index_keys(const OpCall& call, Executor& executor);
  void look_at_row(const OpCall& call, Executor& executor, int64_t op_row);
  // Memory of the executor's device, or a copy at home in slot_.
  const std::byte* home(Executor& executor, const std::byte* at, int64_t bytes);
  void found(const OpCall& call, Executor& executor, int64_t op_row, const char* tensor, int64_t column, bool inf);
  void record(const OpCall& call, Executor& executor, int64_t op_row, RowFault& fault);

  const bool keep_inputs_;
  int pass_ = -1;
  Paging rows_{};
  std::vector<uint8_t> seen_{};  // [max_rows] of the pass
  std::vector<uint8_t> bad_{};   // [max_rows] of the op
  std::vector<RowFault> faults_{};
  std::vector<OpRecord> records_{};
  Tensor changed_{};                  // what the op under way changes in place, as it was: in saved_
  const void* changed_at_ = nullptr;  // where it lies
  std::vector<std::byte> saved_{};
  std::vector<float> row_{};                       // of the cache
  std::vector<std::byte> slot_{}, seen_values_{};  // of a device's, at home
  std::atomic<uint64_t> codes_{0}, saturated_{0};
};

}  // namespace plumb
