#include "ops/executor.h"

#include <chrono>
#include <string>

#include "base/check.h"

namespace plumb {

void Executor::begin_pass(const Paging& rows) {
#ifdef PLUMB_FAULTS
  if (plan_.planted) plan_.planted->begin_pass(rows);
#endif
  for (OpObserver* observer : observers_) observer->begin_pass(rows);
}

void Executor::launch(SiteId site, int64_t rows, const void* args, const RowOrigin& origin) {
  const Kernel& kernel = plan_.kernel(site, rows);
  const OpCall call{.site = site, .rows = rows, .kernel = kernel, .args = args, .origin = origin};
#ifdef PLUMB_FAULTS
  if (plan_.planted) plan_.planted->before(call, *this);
#endif
  for (OpObserver* observer : observers_) observer->before(call, *this);
  const auto begin = std::chrono::steady_clock::now();
  kernel.launch(args, stream_);
  kernel_ns_ += static_cast<uint64_t>((std::chrono::steady_clock::now() - begin).count());
#ifdef PLUMB_FAULTS
  if (plan_.planted) plan_.planted->after(call, *this);
#endif
  for (OpObserver* observer : observers_) observer->after(call, *this);
}

Tensor Executor::to_host(const Tensor& value, std::vector<std::byte>& storage) {
  if (value.where == Where::Host || value.data == nullptr) return value;
  Tensor copy = value;
  copy.where = Where::Host;
  const int64_t rows = value.rank == 0 ? 1 : value.dim(0);
  const auto row_bytes = static_cast<size_t>(rows == 0 ? 0 : value.bytes() / rows);
  storage.resize(static_cast<size_t>(value.bytes()));
  if (value.contiguous())
    memory_.download(storage.data(), value.data, storage.size(), stream_);
  else
    for (int64_t r = 0; r < rows; ++r)
      memory_.download(storage.data() + static_cast<size_t>(r) * row_bytes,
                       static_cast<const std::byte*>(value.data) + r * value.ld * bits(value.dtype) / 8, row_bytes,
                       stream_);
  copy.data = storage.data();
  if (rows > 0) copy.ld = value.elements() / rows;
  return copy;
}

void Executor::tap(int layer, std::string_view name, const Tensor& value) {
  if (!tap_) return;
  std::vector<std::byte> storage;
  const Tensor seen = to_host(value, storage);
  if (layer < 0)
    tap_(name, seen);
  else
    tap_("layers." + std::to_string(layer) + "." + std::string(name), seen);
}

}  // namespace plumb
