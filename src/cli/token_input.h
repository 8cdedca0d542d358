// Token ids that a command is given, as a file of ids or as text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"

namespace plumb {

// A JSON list, or numbers separated by blanks, commas or line ends.
Result<std::vector<int32_t>> read_ids(const std::filesystem::path& file);

}  // namespace plumb
