#if defined(__x86_64__)
namespace plumb::cpu {
namespace {
constexpr int kTile = 4;
}
}  // namespace plumb::cpu
#include "kernels/cpu/attend_body.h"

namespace plumb::cpu {
const AttendTier kAttendAvx512{.attend = attend};
}  // namespace plumb::cpu
#endif
