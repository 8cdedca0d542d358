// How ranks of several machines find each other: at rank 0, over TCP. Everyone gets a connection to everyone.
#pragma once

#include <chrono>
#include <memory>

#include "comm/communicator.h"
#include "comm/rank_env.h"

namespace plumb {

// Error (Peer) that names the ranks that have not come within the deadline.
Result<std::unique_ptr<Communicator>> meet(const RankEnv& env, std::chrono::milliseconds deadline);

}  // namespace plumb
