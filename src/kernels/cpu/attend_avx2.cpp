#if defined(__x86_64__)
namespace plumb::cpu {
namespace {
constexpr int kTile = 2;
}
}  // namespace plumb::cpu
#include "kernels/cpu/attend_body.h"

namespace plumb::cpu {
const AttendTier kAttendAvx2{.attend = attend};
}  // namespace plumb::cpu
#endif
