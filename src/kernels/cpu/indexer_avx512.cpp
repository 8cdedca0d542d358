#if defined(__x86_64__)
namespace plumb::cpu {
namespace {
constexpr int kHeadTile = 8;
}
}  // namespace plumb::cpu
#include "kernels/cpu/indexer_body.h"

namespace plumb::cpu {
const IndexerTier kIndexerAvx512 = kTier;
}  // namespace plumb::cpu
#endif
