// The engine: one thread that owns sequences, pages and the device, and runs step after step.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/queue.h"
#include "engine/engine_api.h"
#include "engine/engine_options.h"
#include "engine/fair_share.h"
#include "engine/page_pool.h"
#include "engine/prefix_tree.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/speculation.h"
#include "engine/step.h"
#include "engine/step_clock.h"
#include "guard/guard.h"
#include "model/model.h"

namespace plumb {

class Engine final : public EngineApi {
 public:
  // What `forward` refers to must outlive the engine; its buffers were made for forward_limits(options, ...).
  static Result<std::unique_ptr<Engine>> start(const Forward& forward, EngineOptions options);
  ~Engine() override;  // aborts what still runs
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Status submit(GenerateRequest request, std::shared_ptr<TokenStream> stream) override;
  EngineStats stats() const override;
  int max_context() const override { return max_context_; }
  bool alive() const override;
  void drain(int64_t timeout_ms) override;
  // Why the ranks that share the model can't go on; every request has then ended with it. Null: they can.
  const Error* lost_rank() const { return lost_ ? &*lost_why_ : nullptr; }

 private:
  struct Submission {
    GenerateRequest request{};
    std::shared_ptr<TokenStream> stream{};
  };
  // Counters of the engine thread, copied after each step to where other threads may read them.
  struct SharedStats {
    std::atomic<int> running{0}, waiting{0};
    std::atomic<int64_t> pages_free{0}, pages_cached{0};
    std::atomic<uint64_t> steps{0}, prompt_tokens{0}, generated_tokens{0}, cached_tokens{0}, preemptions{0}, aborts{0},
        numerical_faults{0}, drafts_proposed{0}, drafts_accepted{0};
    std::atomic<double> step_seconds{0}, op_seconds{0};
  };

  Engine(const Forward& forward, EngineOptions options);
  void loop();
  void take_arrivals();
  void drop_unwanted();
  void drop_if_unwanted(Sequence& sequence, int64_t now_us);
  void step();
  void account_schedule();
  void sample(const StepOutput& output);
  ItemResult settle(const BatchItem& item, const Tensor& report);
  bool settle_row(const BatchItem& item, int row, bool finite);
  void accept_token(Sequence& sequence, const SampleOut& drawn);
  bool follow_grammar(Sequence& sequence, int32_t id, TokenEvent& event);
  void score_prompt(Sequence& sequence, const SampleOut& scored, int32_t id);
  RowOwner owner_of(int row) const;
  RowFault unseen_fault(SiteId site, int row, const char* tensor) const;
  void record_fault(Sequence& sequence, const RowFault& fault, int position);
  void end_faulty(Sequence& sequence, Incident incident);
  void record_draft_faults();
  void end_drifted();
  void share_pages(Sequence& sequence);
  void end_settled(const BatchItem& item);
  static constexpr std::chrono::seconds kIdle{1};  // between two looks while there is nothing to do
  bool ranks_failed() const;
  void end_all_lost();
  void watch_ranks(bool watch);
  void wipe_quarantine();
  void finish(Sequence& sequence, TokenEvent last);
  void push(Sequence& sequence, TokenEvent event);
  void wake_streams();
  void publish();

  Forward forward_;
  const EngineOptions options_;
  const int max_context_ = 0;
  SchedulerLimits limits_{};

  // Shared with other threads.
  BoundedQueue<Submission> inbox_;
  std::atomic<int64_t> unfinished_{0};  // accepted requests without a terminal answer
  std::atomic<bool> draining_{false}, abort_all_{false}, stop_{false};
  std::optional<Error> lost_why_{};  // written before lost_ is set
  std::atomic<bool> lost_{false};
  StepClock clock_;
  SharedStats shared_{};

  // The engine thread's own.
  PagePool pool_;
  PrefixTree cache_;
  StepBuilder builder_;
  Sampler sampler_;
  std::unique_ptr<Drafter> drafter_{};
  Guard guard_;
  SequenceQueues queues_{};
  std::vector<std::unique_ptr<Sequence>> sequences_{};
  std::vector<Submission> arrivals_{};
  std::vector<std::shared_ptr<TokenStream>> to_wake_{};
  Batch batch_{};
  std::vector<ItemResult> results_{};
  std::vector<std::byte> report_rows_{}, draft_rows_{};  // StepOutput::report, where it had to be copied
  EngineStats counts_{};
  FairShare turns_{};
  uint64_t next_arrival_ = 0;
  uint64_t round_ = 0;  // of the loop
  int64_t ended_ = 0;   // requests answered in this round

  std::thread thread_{};
};

}  // namespace plumb
