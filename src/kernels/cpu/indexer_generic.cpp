namespace plumb::cpu {
namespace {
constexpr int kHeadTile = 2;
}
}  // namespace plumb::cpu
#include "kernels/cpu/indexer_body.h"

namespace plumb::cpu {
const IndexerTier kIndexerGeneric = kTier;
}  // namespace plumb::cpu
