#include "guard/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/runner.h"

namespace plumb {
namespace {

// ln sum exp(x), shifted by the largest so that nothing overflows.
double log_sum_exp(std::span<const float> x) {
  const double largest = static_cast<double>(*std::max_element(x.begin(), x.end()));
  double sum = 0;
  for (const float value : x) sum += std::exp(static_cast<double>(value) - largest);
  return largest + std::log(sum);
}

}  // namespace

RowDivergence compare_logits(std::span<const float> a, std::span<const float> b) {
  RowDivergence row{.best_a = argmax(a), .best_b = argmax(b)};
  if (row.best_a < 0 || row.best_b < 0) {
    row.kl = std::numeric_limits<double>::infinity();
    return row;
  }
  const double all_a = log_sum_exp(a), all_b = log_sum_exp(b);
  for (size_t i = 0; i < a.size(); ++i) {
    const double log_a = static_cast<double>(a[i]) - all_a, log_b = static_cast<double>(b[i]) - all_b;
    row.kl += std::exp(log_a) * (log_a - log_b);
  }
  return row;
}

double Divergence::mean() const {
  double sum = 0;
  for (const RowDivergence& row : rows_) sum += row.kl;
  return rows_.empty() ? 0 : sum / static_cast<double>(rows_.size());
}

double Divergence::max() const { return quantile(1); }

double Divergence::quantile(double share) const {
  if (rows_.empty()) return 0;
  std::vector<double> values;
  for (const RowDivergence& row : rows_) values.push_back(row.kl);
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const size_t index = std::clamp<size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

double Divergence::top1_agreement() const {
  const auto same = std::count_if(rows_.begin(), rows_.end(),
                                  [](const RowDivergence& row) { return row.best_a >= 0 && row.best_a == row.best_b; });
  return rows_.empty() ? 1 : static_cast<double>(same) / static_cast<double>(rows_.size());
}

std::vector<size_t> Divergence::worst(size_t count) const {
  std::vector<size_t> order(rows_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [this](size_t x, size_t y) { return rows_[x].kl > rows_[y].kl; });
  order.resize(std::min(count, order.size()));
  return order;
}

std::string Divergence::to_string() const {
  return fmt::format("KL mean {:.3g}, p99 {:.3g}, max {:.3g} nats, same best token at {:.2f} % of {} positions", mean(),
                     quantile(0.99), max(), 100 * top1_agreement(), rows_.size());
}

Result<Divergence> measure_divergence(ModelRunner& a, ModelRunner& b, std::span<const int32_t> ids, int window) {
  const int vocab_a = a.config().vocab_size, vocab_b = b.config().vocab_size;
  if (vocab_a != vocab_b)
    return Error{Code::Usage,
                 fmt::format("the models have vocabularies of {} and {} tokens", vocab_a, vocab_b),
                 "a divergence compares probabilities of the same tokens",
                 {"two checkpoints of one model"}};
  const auto vocab = static_cast<size_t>(vocab_a);
  const auto chunk = static_cast<size_t>(std::min(a.planned().limits.rows, b.planned().limits.rows));
  Divergence out;
  std::vector<RunnerRow> rows;
  std::vector<std::byte> storage_a, storage_b;
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(window)) {
    a.reset();
    b.reset();
    const size_t end = std::min(ids.size(), begin + static_cast<size_t>(window));
    for (size_t at = begin; at < end; at += rows.size()) {
      rows.clear();
      for (size_t i = at; i < std::min(end, at + chunk); ++i) rows.push_back({.id = ids[i], .logits = true});
      PLUMB_TRY(const StepOutput step_a, a.step(rows));
      PLUMB_TRY(const StepOutput step_b, b.step(rows));
      const Tensor logits_a = a.executor().to_host(step_a.logits, storage_a);
      const Tensor logits_b = b.executor().to_host(step_b.logits, storage_b);
      for (int64_t r = 0; r < static_cast<int64_t>(rows.size()); ++r)
        out.add(compare_logits({logits_a.row_f32(r), vocab}, {logits_b.row_f32(r), vocab}));
    }
  }
  return out;
}

}  // namespace plumb
