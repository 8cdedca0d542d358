#include "model/runner.h"

#include <algorithm>
#include <cmath>

#include "model/buffers.h"

namespace plumb {

Result<std::unique_ptr<ModelRunner>> ModelRunner::open(const std::filesystem::path& folder, const Registry& registry,
                                                       const RunnerOptions& options) {
  auto pool = std::make_unique<ThreadPool>(options.threads);
  InstanceOptions instance{.plan = options.plan,
                           .load = options.load,
                           .cuda_device = options.cuda_device,
                           .ranks_here = options.ranks_here,
                           .unreachable = options.unreachable,
                           .comm = options.comm,
                           .loaded = options.loaded};
  ModelPlanOptions& plan = instance.plan;
  plan.max_logit_rows = plan.max_rows;
  PLUMB_TRY(auto opened_for_context, read_model_config(folder));
  if (plan.max_context == 0) plan.max_context = std::min(opened_for_context.max_position_embeddings, 8192);
  if (plan.pages == 0)
    plan.pages = int64_t{(plan.max_context + plan.page_tokens - 1) / plan.page_tokens} * plan.max_sequences;
  PLUMB_TRY(auto opened, open_instance(folder, registry, *pool, instance));
  return std::unique_ptr<ModelRunner>(new ModelRunner(std::move(pool), std::move(opened)));
}

ModelRunner::ModelRunner(std::unique_ptr<ThreadPool> pool, std::unique_ptr<ModelInstance> instance)
    : pool_(std::move(pool)), instance_(std::move(instance)), forward_(instance_->forward()) {
  const int sequences = planned().limits.sequences;
  pages_per_sequence_ = static_cast<int>(instance_->cache->pages() / sequences);
  // Neighbouring pages of a sequence are not neighbours in memory, as in a cache that has been in use for a while.
  for (int s = 0; s < sequences; ++s)
    for (int page = 0; page < pages_per_sequence_; ++page) page_table_.push_back(page * sequences + s);
  lengths_.assign(static_cast<size_t>(sequences), 0);
  used_.assign(static_cast<size_t>(sequences), 0);
  const auto rows = static_cast<size_t>(planned().limits.rows);
  for (auto* list : {&ids_, &positions_, &sequences_}) list->assign(rows, 0);
  logit_rows_.reserve(rows);
}

void ModelRunner::reset() { std::fill(lengths_.begin(), lengths_.end(), 0); }

Paging ModelRunner::paging(int rows) const {
  return {.rows = rows,
          .sequences = planned().limits.sequences,
          .positions = positions_.data(),
          .sequence = sequences_.data(),
          .page_table = page_table_.data(),
          .page_table_stride = pages_per_sequence_,
          .page_tokens = instance_->cache->geometry().page_tokens};
}

Status ModelRunner::check(std::span<const RunnerRow> rows) const {
  if (rows.size() > ids_.size())
    return Error{Code::Usage, std::to_string(rows.size()) + " rows in one step", "", {"--max-rows"}};
  for (const RunnerRow& row : rows) {
    if (row.sequence >= static_cast<int>(lengths_.size()))
      return Error{Code::Usage, "sequence " + std::to_string(row.sequence) + " was not planned for", "", {}};
    if (row.sequence >= 0 && (row.id < 0 || row.id >= config().vocab_size))
      return Error{Code::Usage,
                   "token id " + std::to_string(row.id) + " does not exist",
                   "the vocabulary has " + std::to_string(config().vocab_size) + " ids, from 0 on",
                   {}};
  }
  return Ok{};
}

Result<StepOutput> ModelRunner::step(std::span<const RunnerRow> rows) {
  PLUMB_TRY_STATUS(check(rows));
  std::copy(lengths_.begin(), lengths_.end(), used_.begin());
  logit_rows_.clear();
  for (size_t r = 0; r < rows.size(); ++r) {
    const int sequence = rows[r].sequence;
    ids_[r] = rows[r].id;
    sequences_[r] = sequence;
    positions_[r] = sequence < 0 ? 0 : used_[static_cast<size_t>(sequence)]++;
    if (positions_[r] >= planned().max_context)
      return Error{Code::Usage,
                   "sequence " + std::to_string(sequence) + " is longer than its cache",
                   "it was planned for " + std::to_string(planned().max_context) + " tokens",
                   {"a larger --context"}};
    if (rows[r].logits) logit_rows_.push_back(static_cast<int32_t>(r));
  }
  lengths_.swap(used_);
  const StepOutput out = forward(
      forward_, {.token_ids = ids_.data(), .paging = paging(static_cast<int>(rows.size())), .logit_rows = logit_rows_});
  if (forward_.link != nullptr && forward_.link->failed()) return *forward_.link->comm().failure();
  return out;
}

Result<std::vector<float>> ModelRunner::feed(std::span<const int32_t> ids, int64_t wanted, int chunk) {
  const size_t most = chunk > 0 ? std::min(static_cast<size_t>(chunk), ids_.size()) : ids_.size();
  std::vector<float> logits;
  std::vector<RunnerRow> rows;
  for (size_t begin = 0; begin < ids.size(); begin += most) {
    rows.clear();
    for (size_t i = begin; i < std::min(begin + most, ids.size()); ++i)
      rows.push_back({.id = ids[i], .logits = static_cast<int64_t>(ids.size() - i) <= wanted});
    PLUMB_TRY(const StepOutput out, step(rows));
    if (out.logits.data == nullptr) continue;
    std::vector<std::byte> storage;
    const Tensor on_host = executor().to_host(out.logits, storage);
    if (forward_.link != nullptr && forward_.link->failed()) return *forward_.link->comm().failure();
    logits.insert(logits.end(), on_host.f32(), on_host.f32() + on_host.elements());
  }
  return logits;
}

Result<StepOutput> ModelRunner::mtp_step(std::span<const int32_t> next_ids, const Tensor& hidden, int position,
                                         bool reuse) {
  std::vector<RunnerRow> rows;
  for (const int32_t id : next_ids) rows.push_back({.id = id});
  PLUMB_TRY_STATUS(check(rows));
  logit_rows_.clear();
  for (size_t r = 0; r < rows.size(); ++r) {
    ids_[r] = next_ids[r];
    sequences_[r] = 0;
    positions_[r] = position + static_cast<int32_t>(r);
    logit_rows_.push_back(static_cast<int32_t>(r));
  }
  return mtp_forward(
      forward_, {.token_ids = ids_.data(), .paging = paging(static_cast<int>(rows.size())), .logit_rows = logit_rows_},
      hidden, reuse);
}

int32_t argmax(std::span<const float> logits) {
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) return -1;
    if (best < 0 || logits[i] > logits[static_cast<size_t>(best)]) best = static_cast<int32_t>(i);
  }
  return best;
}

}  // namespace plumb
