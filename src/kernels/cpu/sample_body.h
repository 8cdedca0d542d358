// Sampling of one row; the order of its steps is written in kernels/reference/sample.cpp. Included by a file of each
// instruction set. Nothing is sorted: cuts of top_k and top_p are found by histograms of the logits' bits, and the draw
// walks the ids in order.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/sample.h"
#include "kernels/cpu/widen.h"
#include "ops/philox.h"

namespace plumb::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kSpan = 256;  // ids whose weights are computed at once

// Keys that order as the logits do; -0 equals 0. NaN does not get here.
uint32_t order_key(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Summary {
  bool poisoned = false;
  int32_t best = 0;  // the lowest id of the largest
  float largest = -kInf;
};
Summary look_at(const float* logits, int vocab) {
  Summary s;
  bool bad = false;
  for (int i = 0; i < vocab; ++i) bad |= !(logits[i] < kInf);
  for (int i = 0; i < vocab; ++i) s.largest = logits[i] > s.largest ? logits[i] : s.largest;
  s.poisoned = bad || s.largest == -kInf;
  if (!s.poisoned) s.best = static_cast<int32_t>(std::find(logits, logits + vocab, s.largest) - logits);
  return s;
}

// e^((logit - largest) / temperature) of ids [first, first + count), count <= kSpan; 0 beyond count.
struct Weights {
  alignas(64) float value[kSpan];
  Weights(const float* logits, int count, float largest, float temperature) {
    alignas(64) float rest[kLanes];
    int i = 0;
    for (; i < count; i += kLanes) {
      Vec x;
      if (i + kLanes <= count) {
        x = load(logits + i);
      } else {
        std::fill(rest, rest + kLanes, -kInf);
        std::copy(logits + i, logits + count, rest);
        x = load(rest);
      }
      store(value + i, exp_negative((x - largest) / temperature));
    }
    std::fill(value + i, value + kSpan, 0.0f);
  }
};

// How far down the order of logits is kept: every key above `key`, and the first `equal` ids of that key.
struct Cut {
  uint32_t key = 0;
  int64_t equal = std::numeric_limits<int64_t>::max();
};

class Draw {
 public:
  Draw(const SampleRow& row, const float* logits, int vocab, float largest)
      : row_(row), logits_(logits), vocab_(vocab), largest_(largest) {}

  int32_t id() {
    const bool by_count = row_.top_k > 0 && row_.top_k < vocab_;
    if (by_count) cut_ = find_cut(row_.top_k, kInf);
    if (row_.top_p < 1.0f) {
      const double mass = static_cast<double>(row_.top_p) * kept_sum(false);
      const Cut cut = find_cut(vocab_, mass);
      if (cut.key > cut_.key || (cut.key == cut_.key && cut.equal < cut_.equal)) cut_ = cut;
    }
    return walk(philox_uniform(row_.seed, row_.position) * kept_sum(true));
  }

 private:
  static constexpr int kBuckets = 2048;
  struct Digit {
    int shift = 0;
    int bits = 0;
  };

  // The shortest leading part of the order with `count` ids or a sum of weights of at least `mass`, not empty.
  Cut find_cut(int64_t count, double mass) const {
    constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};
    uint32_t prefix = 0;
    uint32_t mask = 0;
    int64_t ids_before = 0;
    double sum_before = 0;
    for (const Digit& digit : kDigits) {
      std::array<int32_t, kBuckets> ids{};
      std::array<double, kBuckets> sums{};
      const uint32_t low = (1u << digit.bits) - 1;
      for (int first = 0; first < vocab_; first += kSpan) add_span(first, {prefix, mask, digit.shift, low}, ids, sums);
      uint32_t value = low;
      while (value > 0 && (ids[value] == 0 || (ids_before + ids[value] < count && sum_before + sums[value] < mass))) {
        ids_before += ids[value];
        sum_before += sums[value];
        --value;
      }
      prefix |= value << digit.shift;
      mask |= low << digit.shift;
      if (digit.shift > 0) continue;
      // All of one key weigh the same.
      const double each = ids[value] > 0 ? sums[value] / ids[value] : 0.0;
      int64_t equal = 1;
      while (equal < ids[value] && ids_before + equal < count && sum_before + static_cast<double>(equal) * each < mass)
        ++equal;
      return {.key = prefix, .equal = equal};
    }
    return {};
  }

  struct Select {
    uint32_t prefix, mask;
    int shift;
    uint32_t low;
  };
  void add_span(int first, const Select& select, std::array<int32_t, kBuckets>& ids,
                std::array<double, kBuckets>& sums) const {
    const int count = std::min(kSpan, vocab_ - first);
    bool any = false;
    for (int i = 0; i < count; ++i) any |= (order_key(logits_[first + i]) & select.mask) == select.prefix;
    if (!any) return;
    const Weights weights(logits_ + first, count, largest_, row_.temperature);
    for (int i = 0; i < count; ++i) {
      const uint32_t key = order_key(logits_[first + i]);
      if ((key & select.mask) != select.prefix || logits_[first + i] == -kInf) continue;
      const uint32_t bucket = (key >> select.shift) & select.low;
      ++ids[bucket];
      sums[bucket] += static_cast<double>(weights.value[i]);
    }
  }

  // Weights of what is kept, zeros elsewhere. `equal` counts ids of the cut's key so far.
  Weights kept(int first, int64_t& equal, bool with_min_p) const {
    const int count = std::min(kSpan, vocab_ - first);
    Weights weights(logits_ + first, count, largest_, row_.temperature);
    if (cut_.key == 0 && row_.min_p <= 0) return weights;
    for (int i = 0; i < count; ++i) {
      const uint32_t key = order_key(logits_[first + i]);
      const bool inside = key > cut_.key || (key == cut_.key && equal++ < cut_.equal);
      if (!inside || (with_min_p && weights.value[i] < row_.min_p)) weights.value[i] = 0;
    }
    return weights;
  }

  static double sum_of(const Weights& weights) {
    double sum = 0;
    for (const float w : weights.value) sum += static_cast<double>(w);
    return sum;
  }
  double kept_sum(bool with_min_p) const {
    double sum = 0;
    int64_t equal = 0;
    for (int first = 0; first < vocab_; first += kSpan) sum += sum_of(kept(first, equal, with_min_p));
    return sum;
  }

  // The first id at which the running sum exceeds the target.
  int32_t walk(double target) const {
    double before = 0;
    int64_t equal = 0;
    int32_t last = 0;
    for (int first = 0; first < vocab_; first += kSpan) {
      const Weights weights = kept(first, equal, true);
      const double sum = sum_of(weights);
      const bool here = before + sum > target;
      double running = before;
      for (int i = 0; (here || first + kSpan >= vocab_) && i < kSpan; ++i) {
        if (weights.value[i] == 0) continue;
        running += static_cast<double>(weights.value[i]);
        last = first + i;
        if (running > target) return last;
      }
      if (here) return last;  // the span's sum and its running sum may round apart
      if (sum > 0) last = last_of(weights, first);
      before += sum;
    }
    return last;
  }
  static int32_t last_of(const Weights& weights, int first) {
    int i = kSpan - 1;
    while (i > 0 && weights.value[i] == 0) --i;
    return first + i;
  }

  const SampleRow& row_;
  const float* logits_;
  int vocab_;
  float largest_;
  Cut cut_{};
};

constexpr double kLogprobFloor = -9999.0;

// The best `count` of the untouched logits, ties to the lower id, and the logarithm of the sum of all e^x.
void best_logprobs(const SampleJob& job, const Summary& summary, SampleOut& out, double& log_sum) {
  double sum = 0;
  for (int first = 0; first < job.vocab; first += kSpan) {
    const Weights weights(job.logits + first, std::min(kSpan, job.vocab - first), summary.largest, 1.0f);
    for (const float w : weights.value) sum += static_cast<double>(w);
  }
  log_sum = static_cast<double>(summary.largest) + std::log(sum);
  const int count = std::min({job.row.logprobs, job.vocab, 20});
  int have = 0;
  for (int i = 0; i < job.vocab && count > 0; ++i) {
    const float x = job.logits[i];
    if (have == count && !(x > job.logits[out.top_ids[count - 1]])) continue;
    int at = have < count ? have++ : count - 1;
    for (; at > 0 && x > job.logits[out.top_ids[at - 1]]; --at) out.top_ids[at] = out.top_ids[at - 1];
    out.top_ids[at] = i;
  }
  for (int i = 0; i < count; ++i) {
    const double value = static_cast<double>(job.logits[out.top_ids[i]]) - log_sum;
    out.top_logprobs[i] = static_cast<float>(std::max(value, kLogprobFloor));
  }
}

// Word by word: under a grammar most words allow nothing, or everything.
void keep_allowed(std::span<const uint32_t> allowed, float* logits, int vocab) {
  for (int first = 0; first < vocab; first += 32) {
    const size_t at = static_cast<size_t>(first) / 32;
    const uint32_t word = at < allowed.size() ? allowed[at] : 0u;
    const int count = std::min(32, vocab - first);
    if (word == 0xffffffffu) continue;
    if (word == 0) {
      std::fill_n(logits + first, count, -kInf);
      continue;
    }
    for (int i = 0; i < count; ++i) {
      if ((word >> i & 1u) == 0) logits[first + i] = -kInf;
    }
  }
}

void adjust(const SampleJob& job) {
  const SampleRow& row = job.row;
  for (size_t i = 0; i < row.adjust_ids.size(); ++i) {
    const int32_t id = row.adjust_ids[i];
    if (id < 0 || id >= job.vocab) continue;
    const float x = job.logits[id];
    job.logits[id] = (x > 0 ? x / row.adjust_factor[i] : x * row.adjust_factor[i]) + row.adjust_add[i];
  }
  for (const int32_t id : row.forbidden) {
    if (id >= 0 && id < job.vocab) job.logits[id] = -kInf;
  }
  if (!row.allowed.empty()) keep_allowed(row.allowed, job.logits, job.vocab);
}

void draw_adjusted(const SampleJob& job, SampleOut& out) {
  adjust(job);
  const Summary summary = look_at(job.logits, job.vocab);
  out.poisoned = summary.poisoned;
  if (out.poisoned) return;
  out.id = job.row.temperature > 0 ? Draw(job.row, job.logits, job.vocab, summary.largest).id() : summary.best;
}

// Keeps the row as it was on the worker's stack, because the drawn id's untouched logit is wanted in the end.
__attribute__((noinline)) float draw_and_look_back(const SampleJob& job, SampleOut& out) {
  alignas(64) float untouched[kSampleMaxVocab];
  std::copy_n(job.logits, job.vocab, untouched);
  draw_adjusted(job, out);
  return out.poisoned ? 0.0f : untouched[out.id];
}

void sample(const SampleJob& job, SampleOut& out) {
  out = SampleOut{};
  const Summary summary = look_at(job.logits, job.vocab);
  out.poisoned = summary.poisoned;
  if (out.poisoned) return;
  if (job.row.logprobs < 0) return draw_adjusted(job, out);
  double log_sum = 0;
  best_logprobs(job, summary, out, log_sum);
  const float logit = draw_and_look_back(job, out);
  if (out.poisoned) {
    out = SampleOut{.poisoned = true};
    return;
  }
  out.logprob = static_cast<float>(std::max(static_cast<double>(logit) - log_sum, kLogprobFloor));
}

}  // namespace
}  // namespace plumb::cpu
