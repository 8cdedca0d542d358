#include "engine/check_sample.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/hash.h"

namespace plumb {
namespace {

// The reference decodes some 100 million elements a second, several times for each launch that is judged.
constexpr int64_t kAffordableElements = int64_t{1} << 25;
constexpr int64_t kElementsOfALaunch = int64_t{1} << 22;
constexpr int64_t kElementsOfASmallModel = int64_t{1} << 24;  // that one row needs

int64_t cost_of(const Call& call) {
  const int64_t matrix = call.n * call.k;
  if (call.op == Op::Mlp) return 3 * matrix;
  return call.op == Op::Moe ? 3 * call.topk * matrix : matrix;
}

std::set<int> whole_layers(const Forward& forward) {
  const ModelConfig& c = forward.config;
  std::set<int> chosen = {0, c.num_hidden_layers - 1, c.num_hidden_layers};
  std::set<std::pair<bool, bool>> kinds;  // sparse MLP, own indexer
  for (int l = 0; l < c.num_hidden_layers; ++l)
    if (kinds.emplace(forward.weights.layers[static_cast<size_t>(l)].sparse, c.is_full_indexer(l)).second)
      chosen.insert(l);
  return chosen;
}

}  // namespace

std::vector<bool> quick_sample(const Forward& forward) {
  const std::vector<Site>& sites = forward.executor.plan().sites;
  const std::set<int> whole = whole_layers(forward);
  std::vector<size_t> order(sites.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return cost_of(sites[i].decl.call); });
  std::vector<bool> sampled(sites.size());
  int64_t spent = 0;
  for (const size_t i : order) {
    const SiteDecl& decl = sites[i].decl;
    const bool always = decl.layer < 0 || whole.contains(decl.layer);
    sampled[i] = always || (spent += cost_of(decl.call)) <= kAffordableElements;
  }
  return sampled;
}

bool is_small(const Forward& forward) {
  const std::vector<Site>& sites = forward.executor.plan().sites;
  return std::accumulate(sites.begin(), sites.end(), int64_t{0}, [](int64_t sum, const Site& site) {
           return sum + cost_of(site.decl.call);
         }) <= kElementsOfASmallModel;
}

std::vector<int32_t> some_ids(int count, uint64_t seed, int vocab_size) {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(Hash64().add(seed).add(static_cast<uint64_t>(i)).value() %
                                       static_cast<uint64_t>(vocab_size)));
  return ids;
}

int64_t affordable_rows(const Call& call, int64_t rows) {
  return std::clamp<int64_t>(kElementsOfALaunch / std::max<int64_t>(cost_of(call), 1), 1, rows);
}

}  // namespace plumb
