// Large blocks of host memory: zeroed by the system, 2 MiB aligned and willing to be made of huge pages.
#pragma once

#include <cstddef>
#include <memory>

#include "base/result.h"

namespace plumb {

// Pages appear when they are first written, on the NUMA node of the thread that writes them. `purpose` is for the
// error.
Result<std::shared_ptr<std::byte>> allocate_host(size_t bytes, const char* purpose);

}  // namespace plumb
