// Leader and followers. Rank 0 alone has requests, a scheduler and a sampler; every forward and mtp_forward that it
// calls is described to the other ranks first, which call the same. So whatever runs on rank 0 (an engine, a check, a
// command) runs on all of them, and nothing else can get out of step.
//
// Nothing here returns an error while a step runs: the communicator keeps the first failure, collectives do nothing
// from there on, and who called forward looks at failed() before believing what came out.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "model/model.h"
#include "ops/executor.h"

namespace plumb {

// Every rank computes this op alike, and whole.
bool is_replicated(Op op);

// What such ops gave, in the order they ran.
class ReplicaWatch final : public OpObserver {
 public:
  struct Seen {
    SiteId site = -1;
    int32_t rows = 0;  // of the launch
    uint64_t hash = 0;
  };
  void clear() { seen_.clear(); }
  void begin_pass(const Paging& rows) override { rows_ = rows; }
  std::span<const Seen> seen() const { return seen_; }
  void before(const OpCall&, Executor&) override {}
  void after(const OpCall& call, Executor& executor) override;

 private:
  Paging rows_{};  // of the pass, in host memory: what padding rows hold is nobody's business
  std::vector<Seen> seen_{};
};

class RankLink {
 public:
  using Milliseconds = Communicator::Milliseconds;

  // `executor` runs this rank's steps; it launches nothing any more once the ranks have failed.
  RankLink(Communicator& comm, Executor& executor);
  ~RankLink();
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  Communicator& comm() const { return comm_; }
  bool leads() const { return comm_.rank() == 0; }
  bool failed() const;  // asked again once what a step left is here: whether it can be believed

  // Rank 0: what the others take over with the next message. `deadline`: for each exchange of a step; 0: none.
  // `patience`: until the message after it; whoever sets one has to call beat() while there are no steps.
  void set_times(Milliseconds deadline, Milliseconds patience);
  // Every n-th step is watched: all ranks compare the bits of what they compute alike. 0: none.
  void watch_every(int steps) { watch_every_ = steps; }
  uint64_t watched_steps() const { return watched_; }
  // The failure was found by all ranks at once, so that one of them saying it is enough.
  bool found_by_all() const { return found_by_all_; }

  // Rank 0 tells, the others ignore; called by forward and mtp_forward.
  void announce_step(const StepInput& step);
  void announce_draft(const StepInput& step, bool continues_draft, bool reuse_selection);
  void end_step();  // on all ranks
  // Rank 0: a page's rows are zeroed in all layers.
  void announce_wipe(int32_t page);
  // Rank 0: is everybody there?
  void beat();
  // Rank 0: the others return from follow().
  void finish();

  // The other ranks: what rank 0 does, until it finishes or the ranks fail.
  Status follow(Forward& forward);

 private:
  enum class Kind : int32_t { Step = 1, Draft, Wipe, Beat, End };
  struct Message {
    Kind kind = Kind::End;
    int32_t rows = 0, logit_rows = 0, hidden_rows = 0;
    int32_t sequences = 0, stride = 0, page_tokens = 0;
    int32_t changes = 0;  // of the page table: place and page
    int32_t continues_draft = 0, reuse_selection = 0;
    int32_t watched = 0;
    int32_t page = 0;
    int64_t deadline_ms = 0, patience_ms = 0;
  };

  void announce(Message message, const StepInput& step);
  void note_changes(const Paging& paging);
  void keep_table(const Paging& paging);
  void settle() const;
  void send(const Message& message);
  void begin_watch(bool watched);
  void compare();
  Error differs(const ReplicaWatch::Seen& seen, int rank, int like, size_t alike) const;
  Status follow_messages(Forward& forward);
  Status take_step(const Message& message, Forward& forward);
  StepInput input_of(const Message& message) const;

  Communicator& comm_;
  Executor& executor_;
  Milliseconds deadline_{0}, patience_{0};
  int watch_every_ = 0;
  uint64_t steps_ = 0, watched_ = 0;
  bool watching_ = false, found_by_all_ = false;
  ReplicaWatch watch_{};

  // The page table as all ranks know it, and what of it changes with the step under way.
  std::vector<int32_t> table_{}, changes_{};
  int table_sequences_ = 0, table_stride_ = 0;
  std::vector<int32_t> longest_{};  // of each sequence, in the step under way
  std::vector<int32_t> payload_{};
};

}  // namespace plumb
