// How far two models, or two plans of one, are apart in what they expect next.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace plumb {

class ModelRunner;

// One position. Computed in float64 from float32 logits.
struct RowDivergence {
  double kl = 0;  // sum p_a (ln p_a - ln p_b), in nats; infinite when a logit of either is not finite
  int32_t best_a = -1, best_b = -1;  // largest logits, the lowest id of equals; -1 when there is no such
};
RowDivergence compare_logits(std::span<const float> a, std::span<const float> b);

class Divergence {
 public:
  void add(const RowDivergence& row) { rows_.push_back(row); }

  const std::vector<RowDivergence>& rows() const { return rows_; }
  bool empty() const { return rows_.empty(); }
  double mean() const;
  double max() const;
  // The smallest value that at least this share of the positions does not exceed.
  double quantile(double share) const;
  double top1_agreement() const;  // share of positions whose largest logits are the same token's
  // The positions of the `count` largest values, largest first, the earlier of equals.
  std::vector<size_t> worst(size_t count) const;
  // For people: "KL mean 0.00123, p99 ..., of N positions".
  std::string to_string() const;

 private:
  std::vector<RowDivergence> rows_{};
};

// Feeds both the same tokens, in windows of `window` that start from an empty context, and compares the logits of every
// position. Errors: Usage for different vocabularies or ids that do not exist.
Result<Divergence> measure_divergence(ModelRunner& a, ModelRunner& b, std::span<const int32_t> ids, int window);

}  // namespace plumb
