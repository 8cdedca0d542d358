#include "engine/sampler.h"

#include <algorithm>

#include "base/check.h"

namespace plumb {

namespace {

// Lifts one id above all others, so that the greedy draw is this id; its log-probability is of the untouched logits.
constexpr float kNoFactor[] = {1.0f};
constexpr float kLift[] = {1e30f};

}  // namespace

Sampler::Sampler(Executor& executor, SiteId site, int vocab, int max_rows)
    : executor_(executor), site_(site), vocab_(vocab) {
  rows_.reserve(static_cast<size_t>(max_rows));
  out_.resize(static_cast<size_t>(max_rows));
  words_ = (static_cast<size_t>(vocab) + 31) / 32;
  masks_.resize(words_ * static_cast<size_t>(max_rows));
}

void Sampler::add_draw(const Sequence& sequence, int ahead) {
  const GenerateRequest& request = sequence.request;
  const SamplingParams& sampling = request.sampling;
  const bool too_early = sequence.generated() + ahead < request.min_tokens;
  rows_.push_back({.temperature = sampling.temperature,
                   .top_p = sampling.top_p,
                   .min_p = sampling.min_p,
                   .top_k = sampling.top_k,
                   .seed = sampling.seed,
                   .position = static_cast<uint64_t>(sequence.known() + ahead),
                   .adjust_ids = sequence.adjustments.ids(),
                   .adjust_factor = sequence.adjustments.factors(),
                   .adjust_add = sequence.adjustments.terms(),
                   .forbidden = too_early ? std::span<const int32_t>(request.stop_ids) : std::span<const int32_t>(),
                   .logprobs = sampling.logprobs});
  if (sequence.cursor) constrain(sequence, ahead, rows_.back());
}

// A row after a draft that the grammar does not allow needs no mask: the row before cannot draw that draft.
void Sampler::constrain(const Sequence& sequence, int ahead, SampleRow& row) {
  const std::span mask = std::span(masks_).subspan((rows_.size() - 1) * words_, words_);
  const std::span drafts(sequence.drafts.data(), static_cast<size_t>(ahead));
  const grammar::Cursor::Next next = sequence.cursor->next(drafts, mask);
  if (!next.reached) return;
  if (next.may_end) {
    for (const int32_t id : sequence.request.stop_ids) {
      if (id >= 0 && id < vocab_) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
  }
  row.allowed = mask;
}

void Sampler::add_score(const Sequence& sequence, int position) {
  rows_.push_back({.temperature = 0,
                   .adjust_ids = std::span(sequence.tokens).subspan(static_cast<size_t>(position), 1),
                   .adjust_factor = kNoFactor,
                   .adjust_add = kLift,
                   .logprobs = sequence.request.prompt_logprobs});
}

void Sampler::add_greedy() { rows_.push_back({.temperature = 0}); }

bool Sampler::any_poisoned() const {
  return std::any_of(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(rows_.size()),
                     [](const SampleOut& out) { return out.poisoned; });
}

void Sampler::run(const Tensor& logits) {
  if (rows_.empty()) return;
  PLUMB_CHECK(rows_.size() <= out_.size() && logits.dim(0) == static_cast<int64_t>(rows_.size()),
              "the sampler has another number of rows than the logits");
  executor_.run(
      site_, static_cast<int64_t>(rows_.size()),
      SampleArgs{.logits = logits, .vocab = vocab_, .rows = rows_, .out = std::span(out_).first(rows_.size())});
}

}  // namespace plumb
