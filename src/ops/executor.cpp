#include "ops/executor.h"

#include <chrono>
#include <string>

#include "base/check.h"

namespace plumb {

void Executor::launch(SiteId site, int64_t rows, const void* args) {
  const Kernel& kernel = plan_.kernel(site, rows);
  const auto begin = std::chrono::steady_clock::now();
  kernel.launch(args, stream_);
  kernel_ns_ += static_cast<uint64_t>((std::chrono::steady_clock::now() - begin).count());
}

void Executor::tap(int layer, std::string_view name, const Tensor& value) {
  if (!tap_) return;
  if (layer < 0)
    tap_(name, value);
  else
    tap_("layers." + std::to_string(layer) + "." + std::string(name), value);
}

}  // namespace plumb
