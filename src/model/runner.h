// Runs a model without an engine: a few sequences, fed by hand. For `plumb logits`, verification and tests.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/instance.h"

namespace plumb {

struct RunnerOptions {
  ModelPlanOptions plan{};  // max_rows: rows of one step; max_sequences: sequences 0 ... n-1; max_context: of each
  LoadOptions load{};
  int threads = 0;      // 0: all cores
  int cuda_device = 0;  // with backend "cuda"
  int ranks_here = 1;   // as in InstanceOptions
  std::string unreachable{};
  Communicator* comm = nullptr;
  std::function<Status(LoadedModel&)> loaded{};  // as in InstanceOptions
};

// One row of a step; its position follows from what the sequence has been fed before.
struct RunnerRow {
  int sequence = 0;  // -1: padding
  int32_t id = 0;
  bool logits = false;
};

class ModelRunner {
 public:
  // `registry` must outlive the runner.
  static Result<std::unique_ptr<ModelRunner>> open(const std::filesystem::path& folder, const Registry& registry,
                                                   const RunnerOptions& options);
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  const ModelConfig& config() const { return instance_->config(); }
  const PlannedModel& planned() const { return instance_->planned(); }
  const LoadedModel& model() const { return *instance_->model; }
  Executor& executor() { return *instance_->executor; }
  Forward& forward_state() { return forward_; }
  int length(int sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  // Sets how much of a sequence counts; what lies beyond is written over by the next step.
  void truncate(int sequence, int length) { lengths_[static_cast<size_t>(sequence)] = length; }
  void reset();

  // One step. Rows of one sequence in order. Error (Usage) for ids outside the vocabulary and full sequences.
  Result<StepOutput> step(std::span<const RunnerRow> rows);
  // Feeds sequence 0 in steps of at most `chunk` rows; gives the logits of the last `wanted` positions, [wanted,
  // vocab].
  Result<std::vector<float>> feed(std::span<const int32_t> ids, int64_t wanted, int chunk = 0);
  // The MTP layer on rows of sequence 0: hidden [ids.size(), hidden_size] of positions `position`..., ids of the tokens
  // that follow them.
  Result<StepOutput> mtp_step(std::span<const int32_t> next_ids, const Tensor& hidden, int position, bool reuse);

 private:
  ModelRunner(std::unique_ptr<ThreadPool> pool, std::unique_ptr<ModelInstance> instance);
  Paging paging(int rows) const;
  Status check(std::span<const RunnerRow> rows) const;

  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<ModelInstance> instance_;
  Forward forward_;
  int pages_per_sequence_ = 0;
  std::vector<int32_t> page_table_{}, lengths_{}, ids_{}, positions_{}, sequences_{}, logit_rows_{};
  std::vector<int32_t> used_{};  // of each sequence in the step being checked
};

// The index of the largest logit, the lowest of equals; -1 if one of them is not finite.
int32_t argmax(std::span<const float> logits);

}  // namespace plumb
