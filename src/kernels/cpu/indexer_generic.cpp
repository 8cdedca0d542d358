namespace plumb::cpu {
namespace {
constexpr int kHeadTile = 2;
}
}  // namespace plumb::cpu
#include "kernels/cpu/indexer_body.h"

namespace plumb::cpu {
const IndexerTier kIndexerGeneric{.score = score};
}  // namespace plumb::cpu
