// The part of the table that needs several ranks.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "matrix/table.h"

namespace plumb::matrix {

// Each `every`-th case, planted in the last rank: found by the checks of a start, and while serving. `absent`: settings
// whose checkpoint is not there. `list`: tells the cases and runs none.
Status run_rank_faults(int every, bool list, std::vector<Outcome>& outcomes, std::vector<std::string>& absent);

}  // namespace plumb::matrix
