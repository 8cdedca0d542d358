// One model on several ranks, which are threads of this process. Rank 0's runner is the caller's; the others follow it.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "model/rank_link.h"
#include "model/runner.h"
#include "support/ranks.h"

namespace plumb::testing {

class RankRunners {
 public:
  // `loaded`: of each rank's model, in order of rank.
  RankRunners(const std::filesystem::path& folder, const Ranks& division, ModelPlanOptions plan,
              const Registry& registry, const std::function<Status(LoadedModel&)>& loaded = {})
      : comms_(joined_ranks(division.count)) {
    plan.tp = division.count;
    plan.ep = division.whole_experts;
    for (const auto& comm : comms_) {
      auto opened =
          ModelRunner::open(folder, registry, {.plan = plan, .threads = 1, .comm = comm.get(), .loaded = loaded});
      if (!opened) {
        ADD_FAILURE() << opened.error().to_string();
        runners_.clear();
        return;
      }
      runners_.push_back(*std::move(opened));
    }
    for (size_t r = 1; r < runners_.size(); ++r)
      threads_.emplace_back([this, r] { ends_[r] = link(r).follow(runners_[r]->forward_state()); });
    link(0).watch_every(1);
  }
  ~RankRunners() {
    if (runners_.empty()) return;
    link(0).finish();
    for (std::thread& thread : threads_) thread.join();
  }
  RankRunners(const RankRunners&) = delete;
  RankRunners& operator=(const RankRunners&) = delete;

  bool opened() const { return !runners_.empty(); }
  ModelRunner& leader() { return *runners_.front(); }
  ModelRunner& runner(size_t rank) { return *runners_[rank]; }
  RankLink& link(size_t rank) { return *runners_[rank]->forward_state().link; }
  // After the leader's link has finished or failed.
  const Status& end_of(size_t rank) {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return ends_[rank];
  }

 private:
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<std::unique_ptr<ModelRunner>> runners_{};
  std::array<Status, 16> ends_{};
  std::vector<std::thread> threads_{};
};

}  // namespace plumb::testing
