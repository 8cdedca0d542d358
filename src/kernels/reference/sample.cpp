// Sampling. The order of a row's steps is part of the definition:
//   1. untouched logits: NaN, +inf or nothing but -inf means poisoned; log-probabilities are taken from them
//   2. adjustments in their order, then forbidden ids, then what is not allowed
//   3. temperature 0: the largest, ties to the lowest id
//   4. else p = softmax(logits / temperature); keep the top_k largest (ties to the lower id), of those the shortest
//      leading part whose share of their sum reaches top_p (at least one), of those every p >= min_p * largest p
//   5. draw: the first id, ascending, whose running sum of the kept p exceeds u * (their sum)
// Ids >= vocab take no part in anything.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/common.h"
#include "ops/philox.h"

namespace plumb::reference {
namespace {

constexpr double kLogprobFloor = -9999.0;

struct Item {
  int32_t id = 0;
  double weight = 0;  // exp((logit - largest) / temperature)
};

bool poisoned(const float* logits, int vocab) {
  bool any = false;
  for (int i = 0; i < vocab; ++i) {
    if (!(logits[i] < std::numeric_limits<float>::infinity())) return true;
    any = any || logits[i] > kMinusInf;
  }
  return !any;
}

void adjust(const SampleRow& row, int vocab, float* logits) {
  for (size_t i = 0; i < row.adjust_ids.size(); ++i) {
    const int32_t id = row.adjust_ids[i];
    if (id < 0 || id >= vocab) continue;
    const float x = logits[id];
    logits[id] = (x > 0 ? x / row.adjust_factor[i] : x * row.adjust_factor[i]) + row.adjust_add[i];
  }
  for (const int32_t id : row.forbidden) {
    if (id >= 0 && id < vocab) logits[id] = kMinusInf;
  }
  for (int32_t id = 0; id < vocab && !row.allowed.empty(); ++id) {
    const size_t word = static_cast<size_t>(id) / 32;
    if (word >= row.allowed.size() || (row.allowed[word] >> (id % 32) & 1u) == 0) logits[id] = kMinusInf;
  }
}

// Ids by descending logit, ties to the lower id.
std::vector<int32_t> ranked(const float* logits, int vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(vocab));
  for (int i = 0; i < vocab; ++i) ids[static_cast<size_t>(i)] = i;
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return ids;
}

int32_t draw(const SampleRow& row, const float* logits, int vocab) {
  const std::vector<int32_t> ids = ranked(logits, vocab);
  if (!(row.temperature > 0)) return ids[0];
  std::vector<Item> kept;
  double sum = 0;
  const double largest = static_cast<double>(logits[ids[0]]);
  const size_t limit = row.top_k > 0 ? static_cast<size_t>(row.top_k) : ids.size();
  for (size_t i = 0; i < std::min(limit, ids.size()) && logits[ids[i]] > kMinusInf; ++i) {
    kept.push_back(
        {ids[i], std::exp((static_cast<double>(logits[ids[i]]) - largest) / static_cast<double>(row.temperature))});
    sum += kept.back().weight;
  }
  double before = 0;
  size_t count = 0;
  while (count < kept.size() && (count == 0 || before < static_cast<double>(row.top_p) * sum))
    before += kept[count++].weight;
  if (!(row.top_p < 1.0f)) count = kept.size();
  while (count > 1 && kept[count - 1].weight < static_cast<double>(row.min_p)) --count;  // the largest weight is 1
  kept.resize(count);
  std::sort(kept.begin(), kept.end(), [](const Item& a, const Item& b) { return a.id < b.id; });
  double total = 0;
  for (const Item& item : kept) total += item.weight;
  const double target = philox_uniform(row.seed, row.position) * total;
  double running = 0;
  for (const Item& item : kept) {
    running += item.weight;
    if (running > target) return item.id;
  }
  return kept.back().id;
}

void log_probabilities(const SampleRow& row, const std::vector<float>& logits, SampleOut& out) {
  const int vocab = static_cast<int>(logits.size());
  const std::vector<int32_t> ids = ranked(logits.data(), vocab);
  const double largest = static_cast<double>(logits[static_cast<size_t>(ids[0])]);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - largest);
  const auto logprob = [&](int32_t id) {
    const double value = static_cast<double>(logits[static_cast<size_t>(id)]) - largest - std::log(sum);
    return static_cast<float>(std::max(value, kLogprobFloor));
  };
  out.logprob = logprob(out.id);
  for (int i = 0; i < std::min({row.logprobs, vocab, 20}); ++i) {
    out.top_ids[i] = ids[static_cast<size_t>(i)];
    out.top_logprobs[i] = logprob(out.top_ids[i]);
  }
}

void sample_row(const SampleArgs& args, int64_t r) {
  const SampleRow& row = args.rows[static_cast<size_t>(r)];
  SampleOut& out = args.out[static_cast<size_t>(r)];
  float* logits = args.logits.row_f32(r);
  out = SampleOut{};
  const std::vector<float> untouched(logits, logits + args.vocab);
  out.poisoned = poisoned(logits, args.vocab);
  if (out.poisoned) return;
  adjust(row, args.vocab, logits);
  out.poisoned = poisoned(logits, args.vocab);  // every id forbidden, or an adjustment that is no number
  if (out.poisoned) return;
  out.id = draw(row, logits, args.vocab);
  if (row.logprobs >= 0) log_probabilities(row, untouched, out);
}

void sample(const SampleArgs& args, Stream& stream) {
  for_ranges(stream, static_cast<int64_t>(args.rows.size()), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) sample_row(args, r);
  });
}

}  // namespace

void add_sample_kernels(std::vector<Kernel>& out) {
  out.push_back(make_kernel<SampleArgs, sample>(reference_contract(Op::Sample)));
}

}  // namespace plumb::reference
