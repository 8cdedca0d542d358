namespace plumb::cpu {
namespace {
constexpr int kTile = 2;
}
}  // namespace plumb::cpu
#include "kernels/cpu/attend_body.h"

namespace plumb::cpu {
const AttendTier kAttendGeneric{.attend = attend};
}  // namespace plumb::cpu
