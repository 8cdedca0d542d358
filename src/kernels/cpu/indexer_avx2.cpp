#if defined(__x86_64__)
namespace plumb::cpu {
namespace {
constexpr int kHeadTile = 4;
}
}  // namespace plumb::cpu
#include "kernels/cpu/indexer_body.h"

namespace plumb::cpu {
const IndexerTier kIndexerAvx2 = kTier;
}  // namespace plumb::cpu
#endif
