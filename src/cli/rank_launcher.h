// Starts the ranks of one machine and looks after them until they end.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "comm/socket_communicator.h"

namespace plumb {

// What launch_ranks gives back: in a rank its number and links, in the process that started them their exit code.
struct Launched {
  int rank = 0;
  std::vector<Socket> links{};
  std::optional<int> ended{};
};

// Makes `ranks` processes of this one. Returns in each of them, and here when all have ended: with rank 0's exit code,
// or that of a lost peer when a rank ended before its time. No rank outlives this process, whatever ends it. Signals
// that ask to stop go to rank 0, which ends the others. Call before there are threads.
Result<Launched> launch_ranks(int ranks);

}  // namespace plumb
