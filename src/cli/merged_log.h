// What several ranks write to their standard errors, as one log: a line that many of them write is written once, with
// the ranks that it came from.
#pragma once

#include <vector>

namespace plumb {

// Reads lines from `pipes` (of ranks first_rank ...) until all have ended, and writes them to `out`. Lines that differ
// in their time alone count as the same when they come within a quarter of a second. Closes the pipes.
void merge_logs(const std::vector<int>& pipes, int first_rank, int out);

}  // namespace plumb
